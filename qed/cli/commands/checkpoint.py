"""Verify the checkpoints of a run: whole, or which file is damaged, missing or extra (verify)."""
# ruff: noqa: T201 -- this is where results are printed

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qed.cli.commands.base import Parser
from qed.errors import DataError, UsageError
from qed.runs import manifest

USAGE = """Usage: qed checkpoint verify RUN [--fast] [--json]

Reads every file of every checkpoint of a run and compares it with the checksums that were written with it.
`qed checkpoint verify --help` says more."""
ABOUT = """Compare every file of a run's checkpoints with the checksums that were written with them.

A line for each checkpoint, newest first: whole, or which file is damaged, missing or extra. --resume takes the newest
one whose files are all undamaged; an extra file does not keep it from that. Nothing is changed."""
EPILOG = """exit codes:
  0  every checkpoint is whole
  2  RUN is no run
  3  a checkpoint is not whole, or there is none

example:
  qed checkpoint verify runs/first"""


def run(arguments: Sequence[str]) -> int:
    """Verify, and say what was found."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else UsageError.exit_code
    if arguments[0] != "verify":
        raise UsageError(f"qed checkpoint has no action '{arguments[0]}'; there is: verify.\n{USAGE}")
    parser = Parser("checkpoint verify", ABOUT, EPILOG)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON, the last of stdout")
    parser.add_argument("--fast", action="store_true", help="compare sizes alone, and not checksums")
    asked = parser.parse(arguments[1:])
    found = _verify_checkpoints(asked.run, asked.fast)
    if asked.json:
        print(json.dumps({"run": str(asked.run), "whole": not any(found.values()), "checkpoints": found}))
    else:
        print("\n".join(f"{name}: {'; '.join(wrong) or 'whole'}" for name, wrong in found.items()))
    return DataError.exit_code if any(found.values()) else 0


def _verify_checkpoints(run_folder: Path, fast: bool) -> dict[str, list[str]]:
    """What is wrong with each checkpoint of a run, newest first; nothing where it is whole."""
    if not run_folder.is_dir():
        raise UsageError(f"There is no run {run_folder}: it is not a folder.")
    folders = manifest.list_checkpoints(run_folder).values()
    if not folders:
        raise DataError(
            f"{run_folder / 'checkpoints'} holds no checkpoint: the run has not come to its first, or {run_folder} is "
            "no run's folder."
        )
    return {folder.name: manifest.list_damage(folder, fast) or manifest.list_extra_files(folder) for folder in folders}
