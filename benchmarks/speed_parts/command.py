"""A whole command as a side of a comparison: every round is a process from start to end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from speed_parts.process import HERE, Figures, build_environment, find_paths

QED = (sys.executable, "-P", "-m", "qed")  # like the script `qed`
CODES = (0, 5)  # one step of a new model may have no gradient, which is exit code 5


class Command:
    """A command that is run once per round, in an empty folder that is removed afterwards.

    Its CPU time is that of its process and of all children that it has waited for.

    Args:
        command: its words; commands of qed follow `QED`.
        threads: threads of its numeric kernels.
        source: folder with the qed to measure; None uses the one that this script belongs to.
        folder: working folder; None uses an empty one.
        codes: allowed exit codes.
    """

    def __init__(
        self,
        command: Sequence[str],
        threads: int = 1,
        source: Path | None = None,
        folder: Path | None = None,
        codes: Sequence[int] = CODES,
    ) -> None:
        self.command, self.folder, self.codes = [*command], folder, codes
        self.environment = build_environment(threads, find_paths(source or HERE.parent))
        self.ready: Figures = {}
        if source is not None:
            self._check_source(source)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because nothing runs between rounds."""

    def _check_source(self, source: Path) -> None:
        """Exit unless qed is imported from the folder to measure."""
        words = [sys.executable, "-P", "-c", "import qed; print(qed.__file__)"]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)
        if not Path(done.stdout.strip()).resolve().is_relative_to(source.resolve()):
            raise SystemExit(f"qed would be imported from {done.stdout.strip() or done.stderr}, and not from {source}.")

    def round(self) -> Figures:
        """Run the command, and return its figures."""
        with tempfile.TemporaryDirectory(prefix="speed-") as folder, tempfile.TemporaryFile("w+") as output:
            began = time.perf_counter()
            process = subprocess.Popen(
                self.command,
                cwd=self.folder or folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            _, status, used = os.wait4(process.pid, 0)
            wall = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            text = output.read()
        if process.returncode not in self.codes:
            command = " ".join(self.command)[:300]
            raise SystemExit(f"{command} ended with exit code {process.returncode}:\n{text[-3000:]}")
        rss = used.ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
        return {"cpu": used.ru_utime + used.ru_stime, "wall": wall, "rss_gb": rss, "tokens": 0}


def keep_cores(count: int) -> int:
    """Restrict this process and its children to this many cores; return the number of cores.

    Args:
        count: number of cores; 0 changes nothing, and neither does a system without support.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = sorted(os.sched_getaffinity(0))
    if count:
        os.sched_setaffinity(0, cores[:count])
    return len(os.sched_getaffinity(0))
