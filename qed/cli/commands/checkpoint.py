"""Verify the checkpoints of a run: report whether each is whole, or which file is damaged, missing or extra."""
# ruff: noqa: T201 -- this is where results are printed

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qed.cli.commands.base import Parser
from qed.errors import DataError, UsageError
from qed.runs import manifest

ACTIONS = ("verify",)
USAGE = """Usage: qed checkpoint verify RUN [--fast] [--json]

Compares every file of every checkpoint of a run with the checksums saved with it.
`qed checkpoint verify --help` explains more."""
ABOUT = """Compare every file of a run's checkpoints with the checksums saved with them.

Prints one line per checkpoint, newest first: whole, or which file is damaged, missing or extra. --resume uses the
newest checkpoint without damaged or missing files; extra files do not matter for that. No file is changed."""
EPILOG = """exit codes:
  0  every checkpoint is whole
  2  RUN is not a run
  3  a checkpoint is not whole, or there is none

example:
  qed checkpoint verify runs/first"""


def run(arguments: Sequence[str]) -> int:
    """Verify the checkpoints, and print the result."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else UsageError.exit_code
    if arguments[0] != "verify":
        raise UsageError(f"qed checkpoint has no action '{arguments[0]}'; there is: verify.\n{USAGE}")
    parser = Parser("checkpoint verify", ABOUT, EPILOG)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--json", action="store_true", help="print one line of JSON, as the last line of stdout")
    parser.add_argument("--fast", action="store_true", help="compare only sizes, not checksums")
    args = parser.parse(arguments[1:])
    damage = _verify_checkpoints(args.run, args.fast)
    if args.json:
        print(json.dumps({"run": str(args.run), "whole": not any(damage.values()), "checkpoints": damage}))
    else:
        print("\n".join(f"{name}: {'; '.join(problems) or 'whole'}" for name, problems in damage.items()))
    return DataError.exit_code if any(damage.values()) else 0


def _verify_checkpoints(run_folder: Path, fast: bool) -> dict[str, list[str]]:
    """Map each checkpoint of a run, newest first, to its problems; an empty list if it is whole."""
    if not run_folder.is_dir():
        raise UsageError(f"There is no run {run_folder}: it is not a folder.")
    folders = manifest.list_checkpoints(run_folder).values()
    if not folders:
        raise DataError(
            f"{run_folder / 'checkpoints'} contains no checkpoint: the run has not saved its first one yet, or "
            f"{run_folder} is not a run's folder."
        )
    return {folder.name: manifest.list_damage(folder, fast) or manifest.list_extra_files(folder) for folder in folders}
