"""Start the processes of a run on this machine, one per rank, watch them, and end all of them when one fails.

The parent is lightweight: it does not import torch. Each child leads a separate session, so that Ctrl-C at a terminal
reaches only the parent, which forwards it once: a run would take a second signal as the order to end at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from qed.cluster.environment import share_cores
from qed.cluster.watch import TAIL, Patience, Watch
from qed.guards.parents import LAUNCHER
from qed.guards.signals import EXIT_CODES, SAVE
from qed.net.ports import reserve_port


class Rank:
    """A process of the run on this machine; `errors` is the file of its stderr, None for rank 0."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], errors: Path | None) -> None:
        self.number = number
        self.process = process
        self.errors = errors
        self.ended_by_us = False

    @property
    def place(self) -> str:
        """The process id, for messages."""
        return f"process {self.process.pid}"

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.poll()

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or with `group` to its whole process group."""
        if self.code is None:
            with suppress(OSError):
                (os.killpg if group else os.kill)(self.process.pid, number)

    def read_errors(self, otherwise: int = 0) -> list[str]:
        """Return the last error in the rank's stderr with its traceback; if none, the last `otherwise` lines."""
        lines: list[str] = []
        if self.errors is not None:
            with suppress(OSError):
                lines = self.errors.read_text("utf-8", errors="replace").splitlines()[-TAIL:]
        marks = [number for number, line in enumerate(lines) if line.startswith(("error: ", "Traceback "))]
        if len(marks) > 1 and lines[marks[-2]].startswith("Traceback "):
            marks.pop()
        return lines[marks[-1] if marks else len(lines) - otherwise :]


def run_ranks(
    command: Sequence[str], ranks: int, stdout: IO[bytes] | None = None, patience: Patience | None = None
) -> int:
    """Run a command as `ranks` processes, and return the run's exit code.

    Rank 0 writes to this process's stdout and stderr. The output of the others goes to temporary files; its end is
    shown if one of them is the first to fail.

    Args:
        command: the command of every process; the environment tells each its rank, see `qed.cluster.environment`.
        ranks: the number of processes.
        stdout: where rank 0's output goes, instead of this process's stdout.
        patience: how long to wait for the other ranks after one has ended.

    Returns:
        0 if all ranks end with 0, else the exit code of the rank that failed first. 75 (`RankLost`) counts only if no
        rank has another code, because the others end with it when they lose one; a rank killed by a signal counts as
        75.
    """
    with ExitStack() as stack:
        signals = stack.enter_context(receive_signals())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qed-ranks-")))
        environment = _build_environment(ranks, stack.enter_context(reserve_port()))
        started: list[Rank] = []
        stack.callback(kill_ranks, started)
        for number in range(ranks):
            started.append(_start(number, command, environment, folder, stdout))
        return Watch(started, signals, patience or Patience()).wait()


def _start(
    number: int, command: Sequence[str], environment: Mapping[str, str], folder: Path, stdout: IO[bytes] | None
) -> Rank:
    variables = {**environment, "RANK": str(number), "LOCAL_RANK": str(number)}
    errors = folder / f"rank_{number}.err" if number else None
    with ExitStack() as files:
        out: IO[bytes] | None = stdout
        if errors is not None:
            out = files.enter_context(errors.with_suffix(".out").open("wb"))
        process = subprocess.Popen(
            list(command),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=files.enter_context(errors.open("wb")) if errors is not None else None,
            start_new_session=True,
        )
    return Rank(number, process, errors)


def kill_ranks(ranks: Sequence[Rank]) -> None:
    """Kill ranks and the processes that they started, and wait until the ranks have ended."""
    for rank in ranks:
        rank.send(signal.SIGKILL, group=True)
    for rank in ranks:
        rank.process.wait()


def _build_environment(ranks: int, port: int) -> dict[str, str]:
    """Return the environment that all ranks share, without their numbers."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    defaults = {
        "OMP_NUM_THREADS": str(share_cores(ranks)),
        # Otherwise gloo uses the address to which the host name resolves, which may be unreachable.
        "GLOO_SOCKET_IFNAME": loopback,
    }
    return {
        **defaults,
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        LAUNCHER: str(os.getpid()),
    }


@contextmanager
def receive_signals() -> Iterator[list[int]]:
    """Collect the signals that this process receives while the block runs, instead of being ended by them."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    previous: dict[int, Any] = {number: signal.getsignal(number) for number in (*EXIT_CODES, SAVE, signal.SIGTSTP)}
    for number, handler in previous.items():
        # An ignored signal (SIGHUP under nohup, SIGTSTP without job control) stays ignored; the ranks inherit that.
        if number not in (signal.SIGHUP, signal.SIGTSTP) or handler != signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
