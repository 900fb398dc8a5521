"""Compare two evaluations on the same problems, or the sampled answers of two runs token by token."""
# ruff: noqa: PLC0415, T201 -- numpy is imported once the options are read, and this prints results

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qed.cli.commands.base import Parser
from qed.cli.commands.verdict_options import add_policy_option
from qed.errors import UsageError

ABOUT = """Compare two evaluations on the same problems, A before and B after.

With one answer per problem the test is the exact McNemar test, with several answers a bootstrap over problems. A and
B are runs (their last evaluation is used), folders eval/step_N, or files of answers. With --rollouts A and B are runs
of the same settings, and what is shown is where they part: the first sampled token that differs, and how close the
draw was. Runs on other numbers of ranks, or on other machines, round differently."""
EPILOG = """examples:
  qed compare runs/base runs/trained
  qed compare runs/x/eval/step_000000 runs/x/eval/step_000200
  qed compare one.jsonl other.jsonl --response-key completion
  qed compare runs/one_rank runs/two_ranks --rollouts"""


def run(arguments: Sequence[str]) -> int:
    """Compare two evaluations, and print the paired tests."""
    parser = Parser("compare", ABOUT, EPILOG)
    add = parser.add_argument
    add("before", type=Path, metavar="A", help="a run, a folder eval/step_N, or a file of answers")
    add("after", type=Path, metavar="B", help="the same, to compare with A")
    add("--gold-key", default="", metavar="COLUMN", help="for a file of answers: the column of the correct answer")
    add("--response-key", default="", metavar="COLUMN,…", help="for a file of answers: the columns of the answers")
    add("--id-key", default="", metavar="COLUMN", help="for a file of answers: the column that identifies a problem")
    add_policy_option(add)
    add("--rollouts", action="store_true", help="show the first sampled token that differs in two runs")
    add("--json", action="store_true", help="print the tests as one line of JSON, as the last line of stdout")
    args = parser.parse(arguments)
    from qed.console.live import Console
    from qed.evaluation.compare import compare
    from qed.evaluation.parting import show_parting
    from qed.evaluation.stored import Scoring

    if args.policy != "math" and not (args.before.is_file() and args.after.is_file()):
        raise UsageError("--policy is for two files of answers, which are graded here. An evaluation has its verdicts.")
    console = Console(args.json)
    if args.rollouts:
        result = show_parting(args.before, args.after, console)
    else:
        scoring = Scoring(args.gold_key, tuple(args.response_key.split(",")), args.id_key, policy=args.policy)
        result = compare(args.before, args.after, scoring, console)
    if args.json:
        print(json.dumps(result))
    return 0
