"""The worker's end of the pipe: it waits for a request, runs a round, and answers with its figures.

Nothing of qed is imported here, so that a rival in a separate environment can be a worker too.
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
    """The rounds of a worker; its other output goes to stderr.

    CPU time is that of the process with all of its threads, between request and answer.
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
        """Report that everything is loaded, and wait for the first round."""
        self._tell(figures)
        self._wait()

    def lap(self, name: str) -> None:
        """Record the round's CPU time so far under a name."""
        self.laps[name] = time.process_time() - self._cpu

    def restart(self) -> None:
        """Exclude the work so far from the round."""
        self.laps = {}
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def done(self, **figures: Any) -> None:
        """End a round, report its figures, and wait for the next."""
        spent = {"cpu": time.process_time() - self._cpu, "wall": time.perf_counter() - self._wall}
        laps = {f"cpu_{name}": value for name, value in self.laps.items()}
        self._tell({**spent, "rss_gb": _read_peak(), **laps, **figures})
        self._wait()

    def _tell(self, figures: dict[str, Any]) -> None:
        print(json.dumps(figures), file=self._answers, flush=True)

    def _wait(self) -> None:
        if not sys.stdin.readline():
            raise SystemExit(0)  # the parent has closed the pipe
        self.restart()


def _read_peak() -> float:
    """Return the peak memory of this process in GiB; on Linux, getrusage would also count its parent's before it."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)


def _check_source(source: str | None) -> None:
    """Exit unless qed is imported from the folder to measure."""
    if source is None:
        return
    spec = find_spec("qed")
    origin = Path(spec.origin).resolve() if spec and spec.origin else None
    if origin is None or not origin.is_relative_to(Path(source).resolve()):
        raise SystemExit(f"qed would be imported from {origin}, and not from {source}.")
