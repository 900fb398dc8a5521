"""Watch the ranks of a run: forward signals to them, and end all of them when one fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from qed.errors import RankLost
from qed.guards.signals import EXIT_CODES, REPEATED, SAVE

TICK = 0.05  # seconds
TAIL = 40  # lines of a failed rank's stderr to show
LOST = RankLost.exit_code
# Exit codes with which all ranks end together: nothing was trained, or a signal stopped the run.
AGREED = (5, *EXIT_CODES.values())


@dataclass(frozen=True)
class Patience:
    """The seconds that the other ranks get after a rank has ended.

    Args:
        agreed: after an end that all ranks reach together, because one of them may be writing a large checkpoint. After
            a success there is no limit; ranks that are still running are then named.
        failed: after a failure, to notice it and to end by themselves.
        terminated: after SIGTERM, until SIGKILL.
    """

    agreed: float = 600.0
    failed: float = 15.0
    terminated: float = 15.0


class Watched(Protocol):
    """A rank as `Watch` sees it, here or on another machine.

    `number` is its rank. The exit code is negative if a signal killed the process; `ended_by_us` says whether the
    launcher sent that signal.
    """

    number: int
    ended_by_us: bool

    @property
    def place(self) -> str:
        """The process id, for messages; with the machine's name if it is another one."""

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or with `group` to its whole process group."""

    def read_errors(self, otherwise: int = 0) -> list[str]:
        """Return the last error in the rank's stderr with its traceback; if none, the last `otherwise` lines."""


class Watch:
    """Waits for the end of all ranks, forwards signals, and ends the others when one fails.

    Args:
        ranks: the processes.
        signals: the signals that this process has received; they are removed from the list once forwarded.
        patience: how long to wait.
    """

    def __init__(self, ranks: Sequence[Watched], signals: list[int], patience: Patience) -> None:
        self.ranks = ranks
        self.signals = signals
        self.patience = patience
        self.stopped = 0  # the first stop signal that was forwarded,
        self.stopped_at = 0.0  # and when, by the monotonic clock
        self.ended: list[Watched] = []  # in order of their end
        self.left = float("inf")  # seconds until the next measure,
        self.silent = float("inf")  # and until naming the ranks that still run after another one's success
        self.measures = [signal.SIGTERM, signal.SIGKILL]

    def wait(self) -> int:
        """Return the run's exit code once all ranks have ended."""
        while len(self.ended) < len(self.ranks):
            time.sleep(TICK)
            self._pass_signals_on()
            fresh = [rank for rank in self.ranks if rank.code is not None and rank not in self.ended]
            # Of several ranks that ended since the last check, those that lost another rank did not end first.
            self.ended += sorted(fresh, key=lambda rank: rank.code == LOST)
            for rank in fresh:
                self._shorten(rank)
            self.left, self.silent = self.left - TICK, self.silent - TICK
            if self.left <= 0 and len(self.ended) < len(self.ranks):
                self._end_others()
            if self.silent <= 0:
                self._name_others()
        return self._report()

    def _shorten(self, rank: Watched) -> None:
        """Limit the time of the other ranks after the end of this one."""
        if rank.code and len(self.measures) == 2:
            agreed = rank.code in AGREED or self._was_stopped(rank)
            self.left = min(self.left, self.patience.agreed if agreed else self.patience.failed)
        if not rank.code:
            self.silent = min(self.silent, self.patience.agreed)

    def _name_others(self) -> None:
        """Print which ranks are still running. They are not ended: rank 0 may be writing a model or flush a tracker."""
        self.silent = float("inf")
        for rank in self.ranks:
            if rank.code is None:
                say(
                    f"rank {rank.number} ({rank.place}) is still running {self.patience.agreed:.0f} s after another "
                    "rank ended without an error. Waiting for it; end it if it hangs."
                )

    def _end_others(self) -> None:
        """End the remaining ranks: first with SIGTERM, then with SIGKILL."""
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
                # One rank is enough: the ranks share the request. If all got it, a fast step might save twice.
                self.ranks[0].send(number)
            else:
                self._pass_stop_on(number)

    def _pass_stop_on(self, number: int) -> None:
        for rank in self.ranks:
            rank.send(number)
        if not self.stopped:
            self.stopped, self.stopped_at = number, time.monotonic()
        elif time.monotonic() - self.stopped_at > REPEATED:  # a later signal ends a run at once
            self.left = min(self.left, self.patience.failed)

    def _suspend(self) -> None:
        """Suspend all ranks with their child processes, and this process, as Ctrl-Z does; resume them with it."""
        for rank in self.ranks:
            rank.send(signal.SIGSTOP, group=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        for rank in self.ranks:
            rank.send(signal.SIGCONT, group=True)

    def _was_stopped(self, rank: Watched) -> bool:
        """Return whether a forwarded stop signal killed a rank, as it does before the rank installs handlers."""
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
            say(_describe_kill(first))
            return LOST
        return code

    def _show_errors(self, first: Watched) -> None:
        """Show the errors of the first rank to fail and of the others; only one rank reports an error of all."""
        for rank in self.ended:
            shown = rank is first or rank.code != LOST
            for line in rank.read_errors(TAIL if rank is first else 0) if shown else ():
                say(f"[rank {rank.number}] {line}")


def _describe_kill(rank: Watched) -> str:
    number = -(rank.code or 0)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = ""
    if number == signal.SIGKILL:
        hint = (
            " If memory ran out, the kernel log says so (dmesg): use fewer ranks, a smaller "
            "learner.tokens_per_microbatch or parallel.shard=full."
        )
    return (
        f"error: rank {rank.number} ({rank.place}) was killed by {name}.{hint} "
        "Resume from the last checkpoint with --resume --out DIR."
    )


def say(line: str) -> None:
    """Print a line of the launcher to stderr."""
    with suppress(OSError):  # the terminal may be closed
        os.write(2, line.encode() + b"\n")
