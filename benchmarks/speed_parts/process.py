"""The parent side: one long-lived process for each side of a comparison, which take turns."""

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
    """Return the environment of a side's process, which imports from this package first, then from the paths."""
    told = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    path = os.pathsep.join([str(HERE), *paths])
    return {**os.environ, **told, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}


def find_paths(source: Path) -> list[str]:
    """Return the import paths, with the qed of a folder before any other."""
    return [str(source), *(path for path in sys.path if path and Path(path).resolve() != HERE.parent)]


class Worker:
    """One side of a comparison: a module of this package in a separate process, which runs a round on request.

    Args:
        module: name of the module, such as `step_ours`.
        settings: its settings, passed as one line of JSON.
        threads: threads of its numeric kernels.
        python: Python of a separate environment without qed; empty uses this one.
        source: folder with the qed to measure; None uses the one that this script belongs to.
    """

    def __init__(
        self, module: str, settings: Figures, threads: int = 1, python: str = "", source: Path | None = None
    ) -> None:
        self.name = module
        # Without -P, the qed of the current folder would come before all others.
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
        """The worker's report after loading; workers load concurrently until this is read."""
        return self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def round(self) -> Figures:
        """Run a round, and return its figures."""
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
        raise SystemExit(f"The worker {self.name} ended with exit code {code}; see its output above.")


class Apart:
    """A worker that exists only during its own rounds, for sides that do not fit into memory together.

    Every round is the second one of a new process.

    Args:
        start: starts the worker.
    """

    def __init__(self, start: Callable[[], Worker]) -> None:
        self.start = start

    @cached_property
    def ready(self) -> Figures:
        """The worker's report after loading."""
        with self.start() as worker:
            return worker.ready

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because nothing runs between rounds."""

    def round(self) -> Figures:
        """Return the figures of one round, after a warm-up round."""
        with self.start() as worker:
            _ = worker.ready
            worker.round()
            return worker.round()


class Side(Protocol):
    """A side of a comparison, which ends with its context."""

    def __enter__(self) -> Side:
        """Return itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the processes that it started."""

    @property
    def ready(self) -> Figures:
        """The report after loading."""

    def round(self) -> Figures:
        """Run a round, and return its figures."""


def in_turns(workers: Mapping[str, Side], rounds: int, warm_up: int = 2) -> dict[str, list[Figures]]:
    """Run the rounds of all sides in turns, and return each side's figures without the warm-up.

    Each figure has the load from other processes under `machine`.
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
