"""Shared by the benchmarks that make runs: problems to train on, and runs in separate processes or in this one."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from results import add_json


def build_parser(text: str | None) -> argparse.ArgumentParser:
    """Build a parser with a module's docstring as help, and with the option --json."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser)
    return parser


def run_here(command: Sequence[Any]) -> None:
    """Run a command of qed in this process, to import what it needs; its output is discarded."""
    from qed.cli.main import main  # noqa: PLC0415 -- not needed by callers that only start processes

    with suppress(SystemExit), redirect_stdout(io.StringIO()):
        main([str(argument) for argument in command])


def make_run(command: Sequence[str], folder: Path) -> str:
    """Make a run unless it is done, replacing an unfinished one; return its error's last line, or an empty text."""
    if (folder / "report.html").is_file():
        return ""
    own = ["--run.threads", "1", "--out", str(folder), *(["--overwrite"] if folder.exists() else [])]
    call = [sys.executable, "-c", "from qed.cli.main import main; main()", *command, *own]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    told = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]  # a killed run prints nothing
    return told[-1] if done.returncode else ""


def build_problems(count: int) -> list[dict[str, str]]:
    """Return problems with worked solutions."""
    return [
        {"question": f"What is {n} + 7?", "answer": str(n + 7), "solution": f"{n} and 7 make {n + 7}."}
        for n in range(count)
    ]


def write_rows(file: Path, rows: Sequence[dict[str, str]]) -> Path:
    """Write rows as lines of JSON, and return the file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file
