"""Join the shards of `qed evaluate --shard` or `qed grade --shard` into the files that one process would write."""
# ruff: noqa: PLC0415, T201 -- numpy is imported once the options are read, and this prints results

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qed.cli.commands.base import Parser

ABOUT = """Join the shards that `qed evaluate --shard I/N` or `qed grade --shard I/N` has written.

OUT becomes what one process would write: the same rows in the same order, and figures over all of them. Every shard
must be present once, complete, and from the same settings and data. Shards inside OUT are deleted after joining."""
EPILOG = """examples:
  qed evaluate --model runs/first --shard 1/2 --out runs/eval
  qed evaluate --model runs/first --shard 2/2 --out runs/eval
  qed merge runs/eval
  qed merge graded.jsonl copied/from/one copied/from/other"""


def run(arguments: Sequence[str]) -> int:
    """Join shards, and print the figures."""
    parser = Parser("merge", ABOUT, EPILOG)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="the --out of the shards: a folder of `evaluate`, a file of `grade`")
    add("shards", nargs="*", type=Path, metavar="SHARD", help="shards, or folders that hold them (default: OUT's own)")
    add("--overwrite", action="store_true", help="replace the same tasks' answers in OUT")
    add("--json", action="store_true", help="print the figures as one line of JSON, as the last line of stdout")
    args = parser.parse(arguments)
    from qed.console.live import Console
    from qed.evaluation.grade_files import require_graded
    from qed.evaluation.merge import merge

    result = merge(args.out, args.shards, args.overwrite, Console(args.json))
    if args.json:
        print(json.dumps(result))
    require_graded(result)
    return 0
