"""What the benchmarks that make runs share: problems to train on, and runs in processes of their own or in this one."""

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
    """A parser whose help is a module's text as it stands, with the option for the last line."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser)
    return parser


def run_here(command: Sequence[Any]) -> None:
    """Run a command of qed in this process, which thereby imports whatever it needs; its output is thrown away."""
    from qed.cli.main import main  # noqa: PLC0415 -- not for those that only make processes

    with suppress(SystemExit), redirect_stdout(io.StringIO()):
        main([str(argument) for argument in command])


def make_run(command: Sequence[str], folder: Path) -> str:
    """Make a run unless it is done, over what is left of an unfinished one; the error's last line, or nothing."""
    if (folder / "report.html").is_file():
        return ""
    own = ["--run.threads", "1", "--out", str(folder), *(["--overwrite"] if folder.exists() else [])]
    call = [sys.executable, "-c", "from qed.cli.main import main; main()", *command, *own]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    told = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]  # one that was killed says nothing
    return told[-1] if done.returncode else ""


def build_problems(count: int) -> list[dict[str, str]]:
    """Problems with worked solutions."""
    return [
        {"question": f"What is {n} + 7?", "answer": str(n + 7), "solution": f"{n} and 7 make {n + 7}."}
        for n in range(count)
    ]


def write_rows(file: Path, rows: Sequence[dict[str, str]]) -> Path:
    """The file, with a line of JSON for each row."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file
