"""The parent side: a worker in an empty folder, killed from outside if it takes too long."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

LOADING_SECONDS = 120.0
MEMORY = 4 << 30
WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """A grader in a separate process with an address-space limit; a killed process is replaced at the next request."""

    def __init__(self, who: str) -> None:
        self.who = who
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Load the grader."""
        home = str(WORKER.parents[2])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([home, *sys.path])}
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), self.who, str(MEMORY)],
            cwd=self._folder.name,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self._line(LOADING_SECONDS) != "ready":
            raise RuntimeError(f"the worker of {self.who} could not be started; run {WORKER} by hand to see why")

    def ask(self, job: str, seconds: float = 3600.0, **arguments: Any) -> Any:
        """Return the worker's answer; None if it was killed at its deadline or died."""
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([job, arguments]).encode() + b"\n")
            self._process.stdin.flush()
            told = self._line(seconds)
        except BrokenPipeError:
            told = None
        if told is None:
            self.kill()
        return told

    def _line(self, seconds: float) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        end, pieces, source = time.monotonic() + seconds, [b""], self._process.stdout.fileno()
        while not pieces[-1].endswith(b"\n"):
            if not select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            pieces.append(os.read(source, 1 << 20))
            if not pieces[-1]:
                return None
        return json.loads(b"".join(pieces))

    def kill(self) -> None:
        """Kill the worker; the processes that it started end by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def left_behind(self) -> list[str]:
        """List the files in its folder, to which no graded text may write."""
        return sorted(path.name for path in Path(self._folder.name).iterdir())
