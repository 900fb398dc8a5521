"""The side that asks: one long-lived process for each side of a comparison, which take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parents[1]
Figures = dict[str, Any]


class Worker:
    """One side of a comparison: a module of this package in a process of its own, which does a round when told.

    Args:
        module: its name here, such as `step_ours`.
        settings: what it works with, given to it as one line of JSON.
        threads: of its numeric kernels.
    """

    def __init__(self, module: str, settings: Figures, threads: int = 1) -> None:
        path = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, sys.path)])
        told = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        self.name = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"speed_parts.{module}"],
            env={**os.environ, **told, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._send(json.dumps({**settings, "threads": threads}))

    @cached_property
    def ready(self) -> Figures:
        """What it told when all was loaded; until this is asked for, several load side by side."""
        return self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def round(self) -> Figures:
        """The figures of one round."""
        self._send("go")
        return self._answer()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._broken()

    def _answer(self) -> Figures:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._broken()
        answer: Figures = json.loads(line)
        return answer

    def _broken(self) -> None:
        code = self._process.wait()
        raise SystemExit(f"The worker {self.name} ended with exit code {code}; what it said stands above.")


def in_turns(workers: dict[str, Worker], rounds: int, warm_up: int = 2) -> dict[str, list[Figures]]:
    """The rounds of each side, one of every side after the other, without those of the warm-up."""
    found: dict[str, list[Figures]] = {side: [] for side in workers}
    for worker in workers.values():
        _ = worker.ready
    for number in range(warm_up + rounds):
        for side, worker in workers.items():
            figures = worker.round()
            told = f"{figures['cpu']:8.3f} CPU s {figures['wall']:8.3f} s {figures['tokens']:8,} tokens"
            print(f"{'warm-up' if number < warm_up else number - warm_up + 1:>8} {side:<16}{told}", file=sys.stderr)
            if number >= warm_up:
                found[side].append(figures)
    return found
