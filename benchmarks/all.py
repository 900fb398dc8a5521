"""The whole table of docs/performance.md in one command: every figure with its goal, and the machine.

    python benchmarks/all.py --quick                              # few rounds and small sizes: about ten minutes
    python benchmarks/all.py --full --json table.json             # hours
    python benchmarks/all.py --full --only step-tiny,sft

Each row is a run of one of the scripts in this folder. Finished rows are kept in a file, so that an interrupted table
resumes with the others; a row is measured again if its command, the code or the machine has changed. A
row whose rival, data or memory is missing is skipped, with the reason. Figures measured while other processes were
busy are marked. The output is Markdown, and the last line is JSON; the exit code is 1 if a row failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

from making_runs import build_parser
from results import print_result
from speed_parts.command import keep_cores
from speed_parts.machine import describe_machine
from table_parts import page
from table_parts.rows import ROWS, Row
from table_parts.runner import HERE, Table


def main() -> None:
    """Measure the rows, print the table, then one line of JSON."""
    asked = _parse()
    if asked.list:
        print("\n".join(f"{row.name:<22}{row.what}" for row in ROWS))
        return
    keep_cores(asked.cores)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    machine, mode = describe_machine(), "--quick" if asked.quick else "--full"
    pythons = {"vllm": asked.vllm, "lm_eval": asked.lm_eval}
    table = Table(asked.place / f"table{mode}.json", machine, pythons, asked.place)
    if asked.again:
        table.forget(row.name for row in asked.only)
    rows = []
    for number, row in enumerate(asked.only, 1):
        print(f"{number} of {len(asked.only)}: {row.name}", file=sys.stderr, flush=True)
        rows.append(page.sum_up_row(row, table.measure(row, asked.quick)))
        print(page.render_table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    source, told = _read_commit(), {**machine, "date": date.today().isoformat()}
    print(f"{page.render_head(told, mode, source)}\n\n{page.render_table(rows)}\n")
    print_result({**told, "mode": mode, "commit": source, "rows": rows}, asked.json)
    sys.exit(1 if any(row["status"] == "failed" for row in rows) else 0)


def _parse() -> argparse.Namespace:
    parser = build_parser(__doc__)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--quick", action="store_true", help="few rounds, small sizes: the figures are rough")
    how.add_argument("--full", action="store_true", help="the figures of the page")
    how.add_argument("--list", action="store_true", help="only list the rows")
    parser.add_argument(
        "--only", type=_read_rows, default=list(ROWS), metavar="NAMES", help="only these rows, comma-separated"
    )
    parser.add_argument("--again", action="store_true", help="measure finished rows again")
    parser.add_argument("--cores", type=int, default=2, help="CPU cores to use; 0: all")
    parser.add_argument(
        "--place", type=Path, default=Path("runs/speed"), help="folder for models, finished rows and logs"
    )
    parser.add_argument("--vllm", default="", metavar="PYTHON", help="Python of an environment with vLLM")
    parser.add_argument(
        "--lm-eval", default=sys.executable, metavar="PYTHON", help="Python of an environment with lm-eval"
    )
    asked = parser.parse_args()
    asked.place = asked.place.resolve()
    return asked


def _read_rows(text: str) -> list[Row]:
    names = text.split(",")
    if unknown := set(names) - {row.name for row in ROWS}:
        raise argparse.ArgumentTypeError(f"unknown rows: {', '.join(sorted(unknown))}; see --list")
    return [row for row in ROWS if row.name in names]


def _read_commit() -> str:
    """Return the commit, and whether files differ from it."""
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unknown commit"


if __name__ == "__main__":
    main()
