"""Start the processes of a run on this machine, one per rank, watch them, and end all of them when one fails.

The parent is light: it imports no torch. Each child leads a session of its own, so that Ctrl-C at a terminal reaches
the parent alone, which passes it on: a run takes a second signal as the order to end at once.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from qed.cluster.environment import share_cores
from qed.errors import QedError, RankLost
from qed.guards.parents import LAUNCHER
from qed.guards.signals import EXIT_CODES, SAVE

TICK = 0.05  # seconds
TAIL = 40  # lines of a failed rank's stderr that are shown
LOST = RankLost.exit_code
# Ends that all ranks reach together, because they decide alike: nothing was trained, or a signal stopped the run.
AGREED = (0, 5, *EXIT_CODES.values())


@dataclass(frozen=True)
class Patience:
    """Seconds that the other ranks get, one after the other, when a rank has ended.

    Args:
        agreed: after an end that all ranks reach together: one of them may be writing a large checkpoint.
        failed: after a failure, to notice it and to end by themselves.
        terminated: after SIGTERM, until SIGKILL.
    """

    agreed: float = 600.0
    failed: float = 15.0
    terminated: float = 15.0


class Rank:
    """A process of the run: its number, the files of its output (rank 0 has none), and its exit code once it has ended.

    `code` is negative if a signal has killed it; `ended_by_us` says whether that signal was the launcher's.
    """

    def __init__(self, number: int, process: subprocess.Popen[bytes], errors: Path | None) -> None:
        self.number = number
        self.process = process
        self.errors = errors
        self.ended_by_us = False

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.poll()

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or to it and all that it has started."""
        if self.code is None:
            with suppress(OSError):
                (os.killpg if group else os.kill)(self.process.pid, number)

    def read_errors(self, otherwise: int = 0) -> list[str]:
        """Return the last error in the rank's stderr with its traceback; without one, so many of the last lines."""
        lines: list[str] = []
        if self.errors is not None:
            with suppress(OSError):
                lines = self.errors.read_text("utf-8", errors="replace").splitlines()[-TAIL:]
        marks = [number for number, line in enumerate(lines) if line.startswith(("error: ", "Traceback "))]
        if len(marks) > 1 and lines[marks[-2]].startswith("Traceback "):
            marks.pop()
        return lines[marks[-1] if marks else len(lines) - otherwise :]


def build_child_command(arguments: Sequence[str]) -> list[str]:
    """Return the command of a child that runs `qed ARGUMENTS` with this interpreter.

    The current folder is on the child's import path only if it is on ours: a user's `datasets.py` there must not stand
    in for the library.
    """
    safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
    return [sys.executable, *safe, "-m", "qed", *arguments]


def run_ranks(
    command: Sequence[str], ranks: int, stdout: IO[bytes] | None = None, patience: Patience | None = None
) -> int:
    """Run a command as `ranks` processes, and return the run's exit code.

    Rank 0 writes to this process's stdout and stderr. The output of the others goes to temporary files; its end is
    shown if one of them is the first to fail.

    Args:
        command: of every process; the environment tells each its rank, see `qed.cluster.environment`.
        ranks: the number of processes.
        stdout: for rank 0's output, instead of this process's.
        patience: how long to wait for the others when a rank has ended.

    Returns:
        0 if all ranks end with 0, else the code of the rank that failed first. 75 (`RankLost`) counts only if no rank
        has another code, because the others end with it when they lose one; it stands for a rank that a signal killed.
    """
    with ExitStack() as stack:
        signals = stack.enter_context(_receive_signals())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qed-ranks-")))
        environment = _build_environment(ranks, stack.enter_context(_reserve_port()))
        started: list[Rank] = []
        stack.callback(_kill, started)
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


def _kill(ranks: Sequence[Rank]) -> None:
    for rank in ranks:
        rank.send(signal.SIGKILL, group=True)
    for rank in ranks:
        rank.process.wait()


def _build_environment(ranks: int, port: int) -> dict[str, str]:
    """Return the environment of all ranks, but for their numbers."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    defaults = {
        "OMP_NUM_THREADS": str(share_cores(ranks)),
        # Otherwise gloo takes the address that the machine's name stands for, which need not be reachable.
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
def _reserve_port() -> Iterator[int]:
    """Yield a free port, which nobody but rank 0 takes while the block runs.

    On Linux a socket that is bound and does not listen keeps a port from all programs but those that ask to share it,
    as servers do that choose their port. Elsewhere the port is released before it is used.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        with suppress(OSError), socket.socket(family) as holder:
            if family == socket.AF_INET6:
                holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((address, 0))
            port = int(holder.getsockname()[1])
            if sys.platform != "linux":
                holder.close()
            yield port
            return
    raise QedError("No port of this machine can be bound, so that the ranks cannot find each other.")


@contextmanager
def _receive_signals() -> Iterator[list[int]]:
    """Collect the signals that this process gets while the block runs, instead of ending by them."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    previous: dict[int, Any] = {number: signal.getsignal(number) for number in (*EXIT_CODES, SAVE, signal.SIGTSTP)}
    for number, handler in previous.items():
        # Under nohup SIGHUP is ignored, as SIGTSTP is without job control, and stays so; the ranks inherit that.
        if number not in (signal.SIGHUP, signal.SIGTSTP) or handler != signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Watch:
    """Waits for the end of all ranks, passes signals on, and ends the others when one fails.

    Args:
        ranks: the processes.
        signals: those that this process has received; taken from the list once they are passed on.
        patience: how long to wait.
    """

    def __init__(self, ranks: Sequence[Rank], signals: list[int], patience: Patience) -> None:
        self.ranks = ranks
        self.signals = signals
        self.patience = patience
        self.stopped = 0  # the first stop signal that was passed on
        self.ended: list[Rank] = []  # in this order
        self.left = float("inf")  # seconds until the next measure
        self.measures = [signal.SIGTERM, signal.SIGKILL]

    def wait(self) -> int:
        """Return the run's exit code once all ranks have ended."""
        while len(self.ended) < len(self.ranks):
            time.sleep(TICK)
            self._pass_signals_on()
            fresh = [rank for rank in self.ranks if rank.code is not None and rank not in self.ended]
            # Of several that have ended since the last look, those that lost another rank are not the first.
            self.ended += sorted(fresh, key=lambda rank: rank.code == LOST)
            for rank in fresh:
                self._shorten(rank)
            self.left -= TICK
            if self.left <= 0 and len(self.ended) < len(self.ranks):
                self._end_others()
        return self._report()

    def _shorten(self, rank: Rank) -> None:
        """Give the other ranks no more time than the end of this one leaves them."""
        if rank.code and len(self.measures) == 2:
            agreed = rank.code in AGREED or self._was_stopped(rank)
            self.left = min(self.left, self.patience.agreed if agreed else self.patience.failed)

    def _end_others(self) -> None:
        """End the ranks that are left: first with SIGTERM, then with SIGKILL."""
        number = self.measures.pop(0) if self.measures else signal.SIGKILL
        for rank in self.ranks:
            if rank.code is None:
                rank.ended_by_us = True
                rank.send(number, group=number == signal.SIGKILL)
        self.left = self.patience.terminated

    def _pass_signals_on(self) -> None:
        while self.signals:
            number = self.signals.pop(0)
            if number == signal.SIGTSTP:
                self._suspend()
            elif number == SAVE:
                # One rank is enough: the ranks tell each other. If all were asked, a fast step might save twice.
                self.ranks[0].send(number)
            else:
                for rank in self.ranks:
                    rank.send(number)
                if self.stopped:  # a second signal ends a run at once
                    self.left = min(self.left, self.patience.failed)
                self.stopped = self.stopped or number

    def _suspend(self) -> None:
        """Stop all ranks with what they have started, and this process, as Ctrl-Z does; go on when it goes on."""
        for rank in self.ranks:
            rank.send(signal.SIGSTOP, group=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        for rank in self.ranks:
            rank.send(signal.SIGCONT, group=True)

    def _was_stopped(self, rank: Rank) -> bool:
        """Return whether a stop signal that was passed on has killed a rank, as before it has installed handlers."""
        return bool(self.stopped) and rank.code is not None and -rank.code in EXIT_CODES

    def _report(self) -> int:
        """Report the rank that failed first, and return the exit code."""
        failed = [rank for rank in self.ended if rank.code and not rank.ended_by_us]
        if not failed:
            return 0 if all(rank.code == 0 for rank in self.ranks) else LOST
        first = next((rank for rank in failed if rank.code != LOST), failed[0])
        self._show_errors(first)
        code = first.code or 0
        if self._was_stopped(first):
            return EXIT_CODES[signal.Signals(self.stopped)]
        if code < 0:
            _say(_describe_kill(first))
            return LOST
        return code

    def _show_errors(self, first: Rank) -> None:
        """Show what the first rank to fail has said, and the errors of others: of a common one, one rank tells."""
        for rank in self.ended:
            shown = rank is first or rank.code != LOST
            for line in rank.read_errors(TAIL if rank is first else 0) if shown else ():
                _say(f"[rank {rank.number}] {line}")


def _describe_kill(rank: Rank) -> str:
    number = -(rank.code or 0)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = ""
    if number == signal.SIGKILL:
        hint = (
            " If memory ran out, the kernel's log says so (dmesg): fewer ranks, a smaller "
            "learner.tokens_per_microbatch or parallel.shard=full need less."
        )
    return (
        f"error: rank {rank.number} (process {rank.process.pid}) was killed by {name}.{hint} "
        "Resume from the last checkpoint with --resume --out DIR."
    )


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal may be closed
        os.write(2, line.encode() + b"\n")
