"""Write one self-contained HTML file about a run or several."""
# ruff: noqa: PLC0415 -- the report is imported only after the options are parsed

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qed.cli.commands.base import Parser
from qed.errors import UsageError


def run(arguments: Sequence[str]) -> int:
    """Write the report and print where it is."""
    parser = Parser("report", "Write one self-contained HTML file about a run or several.")
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or a folder written by `qed evaluate`"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file to write (default: RUN/report.html)")
    asked = parser.parse(arguments)
    from qed.runs.folder import drop_tables

    runs = drop_tables(asked.runs)
    for folder in runs:
        if not folder.is_dir():
            raise UsageError(f"There is no run {folder}: it is not a folder.")
    from qed.report.write import write_report

    print(write_report(runs, asked.out or runs[0] / "report.html"))  # noqa: T201 -- its result
    return 0
