"""Compare two evaluations on the same problems: a paired test, and the problems that changed."""
# ruff: noqa: PLC0415, T201 -- numpy is imported once the options are read, and this prints results

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qed.cli.commands.base import Parser

ABOUT = """Compare two evaluations on the same problems, A before and B after.

Single answers are compared by the exact McNemar test, several answers to a problem by a bootstrap over problems. A
and B are runs (of which the last evaluation counts), folders eval/step_N, or files of answers."""
EPILOG = """examples:
  qed compare runs/base runs/trained
  qed compare runs/x/eval/step_000000 runs/x/eval/step_000200
  qed compare one.jsonl other.jsonl --response-key completion"""


def run(arguments: Sequence[str]) -> int:
    """Print the paired tests."""
    parser = Parser("compare", ABOUT, EPILOG)
    add = parser.add_argument
    add("before", type=Path, metavar="A", help="a run, a folder eval/step_N, or a file of answers")
    add("after", type=Path, metavar="B", help="the same, to compare with it")
    add("--gold-key", default="", metavar="COLUMN", help="of a file of answers: the right answer")
    add("--response-key", default="", metavar="COLUMN,…", help="of a file of answers: the answers")
    add("--id-key", default="", metavar="COLUMN", help="of a file of answers: what tells problems apart")
    add("--json", action="store_true", help="print the tests as one line of JSON, the last of stdout")
    asked = parser.parse(arguments)
    from qed.console.live import Console
    from qed.evaluation.compare import compare
    from qed.evaluation.stored import Scoring

    scoring = Scoring(asked.gold_key, tuple(asked.response_key.split(",")), asked.id_key)
    result = compare(asked.before, asked.after, scoring, Console(asked.json))
    if asked.json:
        print(json.dumps(result))
    return 0
