"""The side that asks: one long-lived process for each side of a comparison, which take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from speed_parts.load import Watch

HERE = Path(__file__).parents[1]
Figures = dict[str, Any]


def build_environment(threads: int, paths: Sequence[str]) -> dict[str, str]:
    """The variables of a side's process, which finds this package first and then what the paths hold."""
    told = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    path = os.pathsep.join([str(HERE), *paths])
    return {**os.environ, **told, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}


def find_paths(source: Path) -> list[str]:
    """Where modules are looked for, with the qed of a folder before any other."""
    return [str(source), *(path for path in sys.path if path and Path(path).resolve() != HERE.parent)]


class Worker:
    """One side of a comparison: a module of this package in a process of its own, which does a round when told.

    Args:
        module: its name here, such as `step_ours`.
        settings: what it works with, given to it as one line of JSON.
        threads: of its numeric kernels.
        python: of an environment of its own, which has no qed; empty takes this one.
        source: the folder that holds the qed to measure; None takes the one that this script is part of.
    """

    def __init__(
        self, module: str, settings: Figures, threads: int = 1, python: str = "", source: Path | None = None
    ) -> None:
        self.name = module
        # Without -P, the qed of the present folder would come before all others.
        self._process = subprocess.Popen(
            [python or sys.executable, "-P", "-m", f"speed_parts.{module}"],
            env=build_environment(threads, [] if python else find_paths(source or HERE.parent)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        own = {"threads": threads} if source is None else {"threads": threads, "source": str(source)}
        self._send(json.dumps({**settings, **own}))

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


class Apart:
    """A worker that is there for its own rounds alone, where the sides do not fit into memory together.

    Every round is the second of a process that starts anew.

    Args:
        start: makes the worker.
    """

    def __init__(self, start: Callable[[], Worker]) -> None:
        self.start = start

    @cached_property
    def ready(self) -> Figures:
        """What it told when all was loaded."""
        with self.start() as worker:
            return worker.ready

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs between rounds."""

    def round(self) -> Figures:
        """The figures of one round, behind one that warms up."""
        with self.start() as worker:
            _ = worker.ready
            worker.round()
            return worker.round()


class Side(Protocol):
    """What can take its turn, and ends with its context."""

    def __enter__(self) -> Side:
        """Itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what it started."""

    @property
    def ready(self) -> Figures:
        """What it tells when it can begin."""

    def round(self) -> Figures:
        """The figures of one round."""


def in_turns(workers: Mapping[str, Side], rounds: int, warm_up: int = 2) -> dict[str, list[Figures]]:
    """The rounds of each side, one of every side after the other, without those of the warm-up.

    Each has under `machine` what other processes did meanwhile.
    """
    found: dict[str, list[Figures]] = {side: [] for side in workers}
    for worker in workers.values():
        _ = worker.ready
    watch = Watch()
    for number in range(warm_up + rounds):
        for side, worker in workers.items():
            watch.restart()
            figures = {**worker.round(), "machine": watch.lap()}
            told = f"{figures['cpu']:8.3f} CPU s {figures['wall']:8.3f} s {figures['tokens']:8,} tokens"
            print(f"{'warm-up' if number < warm_up else number - warm_up + 1:>8} {side:<16}{told}", file=sys.stderr)
            if number >= warm_up:
                found[side].append(figures)
    return found
