"""Measures the rows one after the other, and keeps finished ones, so that an interrupted table resumes."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from speed_parts import load

from qed import host
from qed.errors import UsageError
from qed.serving.install import find_vllm
from table_parts.rows import Row

Result = dict[str, Any]
HERE = Path(__file__).resolve().parents[1]
CODE = ("qed/**/*.py", "qed/**/*.cpp", "qed/**/*.h", "configs/*.yaml", "benchmarks/**/*.py")
WITHOUT_PLACE = ("logps.py", "grading.py", "evaluation.py", "commands.py")  # scripts without a model folder
ASK = "import lm_eval"
ASK_VLLM = "import importlib.metadata as known, lm_eval; known.version('vllm')"


class Table:
    """The finished rows, in a file.

    A row is measured again if its command, the code, the files that it needs or the machine has changed.

    Args:
        state: path of the file.
        machine: what the figures depend on besides the code.
        pythons: Pythons of the rivals with separate environments: `vllm` and `lm_eval`.
        place: folder of model folders and of the rows' output.
    """

    def __init__(self, state: Path, machine: Result, pythons: dict[str, str], place: Path) -> None:
        self.state, self.pythons, self.place = state, pythons, place
        self.done: dict[str, Result] = json.loads(state.read_text(encoding="utf-8")) if state.is_file() else {}
        self.base = hash_code() + json.dumps(machine, sort_keys=True)

    def measure(self, row: Row, quick: bool) -> Result:
        """Return the result of a row: from the file, from a run of its script, or the reason why there is none."""
        reason = find_obstacle(row, quick, self.pythons)
        if reason:
            return {"status": "skipped", "reason": reason}
        command = self.build_command(row, quick)
        key = hashlib.sha256((self.base + json.dumps(command) + hash_needs(row)).encode()).hexdigest()
        if self.done.get(row.name, {}).get("key") == key:
            return {**self.done[row.name], "kept": True}
        found = {**self._run(row.name, command), "key": key, "command": shlex.join(command)}
        if found["status"] == "measured":
            self.done[row.name] = found
            self._write()
        return found

    def forget(self, names: Iterable[str]) -> None:
        """Remove rows from the finished ones."""
        for name in names:
            self.done.pop(name, None)

    def build_command(self, row: Row, quick: bool) -> list[str]:
        """Return the script and its arguments; if an option occurs twice, the second one counts."""
        words = [word.format(**self.pythons) for word in shlex.split(row.command)]
        more = shlex.split(row.quick or "") if quick else []
        place = [] if words[0] in WITHOUT_PLACE else ["--place", str(self.place)]
        return [*words, *more, *place]

    def _run(self, name: str, command: list[str]) -> Result:
        self.place.mkdir(parents=True, exist_ok=True)
        log = self.place / f"{name}.txt"
        watch, began = load.Watch(), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, log.open("w", encoding="utf-8") as output:
            file = Path(folder) / "result.json"
            words = [sys.executable, str(HERE / command[0]), *command[1:], "--json", str(file)]
            done = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, check=False, cwd=HERE.parent)
            lap, seconds = watch.lap(), time.perf_counter() - began
            if done.returncode or not file.is_file():
                return {"status": "failed", "reason": f"exit code {done.returncode}: {_read_last_line(log)} ({log})"}
            result = json.loads(file.read_text(encoding="utf-8"))
        # A script that measures the load per round is more precise than the whole, which includes making models.
        result.setdefault("load", load.sum_up([lap]))
        return {"status": "measured", "seconds": seconds, "result": result}

    def _write(self) -> None:
        """Write the file atomically."""
        self.state.parent.mkdir(parents=True, exist_ok=True)
        half = self.state.with_suffix(".part")
        half.write_text(json.dumps(self.done), encoding="utf-8")
        half.replace(self.state)


def hash_code() -> str:
    """Return a digest of qed's and the benchmarks' code."""
    return _hash_files(file for pattern in CODE for file in sorted(HERE.parent.glob(pattern)))


def hash_needs(row: Row) -> str:
    """Return a digest of the files that a row needs; for a folder, of its Python files."""
    places = [HERE.parent / need for need in row.needs if "/" in need]
    return _hash_files(
        file for place in places for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
    )


def _hash_files(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.path.relpath(file, HERE.parent).encode() + file.read_bytes())
    return digest.hexdigest()


def find_obstacle(row: Row, quick: bool, pythons: dict[str, str]) -> str:
    """Return why a row cannot be measured here; empty if it can."""
    if quick and row.quick is None:
        return "only with --full"
    return next(filter(None, _list_obstacles(row, quick, pythons)), "")


def _list_obstacles(row: Row, quick: bool, pythons: dict[str, str]) -> Iterator[str]:
    for need in row.needs:
        if "/" in need:
            yield "" if (HERE.parent / need).exists() else f"{need} is not here"
        elif need == "trl":
            yield "" if find_spec("trl") else "TRL is not installed (qed[bench])"
        elif need == "vllm":
            yield _miss_vllm(pythons["vllm"])
        else:
            yield _miss_lm_eval(pythons["lm_eval"], need)
    free = host.read_memory()[1] / 2**30 if row.memory and not quick else row.memory
    yield f"needs {row.memory} GiB of memory, and {free:.0f} are free" if free < row.memory else ""


def _miss_vllm(python: str) -> str:
    try:
        find_vllm(python)
    except UsageError as error:
        return str(error)
    return ""


def _miss_lm_eval(python: str, need: str) -> str:
    ask = ASK_VLLM if need == "lm-eval-vllm" else ASK
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{python}: {error}"
    return f"{need} is not installed in {python} (--lm-eval)" if done.returncode else ""


def _read_last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it ended without output"
