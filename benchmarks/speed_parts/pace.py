"""The worker's end of the pipe: it waits to be told, does a round, and answers with its figures.

Nothing of qed is imported here, so that a rival in an environment of its own can be a worker too.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch


class Pace:
    """The rounds of a worker; what it prints by itself goes to stderr.

    Processor time is that of the process with all of its threads, between being told and having answered.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.settings: dict[str, Any] = json.loads(sys.stdin.readline())
        torch.set_num_threads(self.settings["threads"])
        _check_source(self.settings.get("source"))
        self._wall = self._cpu = 0.0
        self.laps: dict[str, float] = {}

    def ready(self, **figures: Any) -> None:
        """Say that all is loaded, and wait for the first round."""
        self._tell(figures)
        self._wait()

    def lap(self, name: str) -> None:
        """Note the processor time of the round so far under a name."""
        self.laps[name] = time.process_time() - self._cpu

    def restart(self) -> None:
        """Leave out of the round what was done so far."""
        self.laps = {}
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def done(self, **figures: Any) -> None:
        """End a round, tell its figures, and wait for the next."""
        spent = {"cpu": time.process_time() - self._cpu, "wall": time.perf_counter() - self._wall}
        laps = {f"cpu_{name}": value for name, value in self.laps.items()}
        self._tell({**spent, "rss_gb": _read_peak(), **laps, **figures})
        self._wait()

    def _tell(self, figures: dict[str, Any]) -> None:
        print(json.dumps(figures), file=self._answers, flush=True)

    def _wait(self) -> None:
        if not sys.stdin.readline():
            raise SystemExit(0)  # nobody asks any more
        self.restart()


def _read_peak() -> float:
    """GiB that this process has held at most; on Linux getrusage also counts what its parent held before it."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)


def _check_source(source: str | None) -> None:
    """Stop where qed is not that of the folder which is to be measured."""
    if source is None:
        return
    spec = find_spec("qed")
    origin = Path(spec.origin).resolve() if spec and spec.origin else None
    if origin is None or not origin.is_relative_to(Path(source).resolve()):
        raise SystemExit(f"qed would be imported from {origin}, and not from {source}.")
