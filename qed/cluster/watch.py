"""Watch the ranks of a run: pass signals on to them, and end all of them when one fails."""

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
TAIL = 40  # lines of a failed rank's stderr that are shown
LOST = RankLost.exit_code
# Ends that all ranks reach together, because they decide alike: nothing was trained, or a signal stopped the run.
AGREED = (5, *EXIT_CODES.values())


@dataclass(frozen=True)
class Patience:
    """Seconds that the other ranks get, one after the other, when a rank has ended.

    Args:
        agreed: after an end that all ranks reach together: one of them may be writing a large checkpoint. After a
            success there is no limit; those that still run are then named.
        failed: after a failure, to notice it and to end by themselves.
        terminated: after SIGTERM, until SIGKILL.
    """

    agreed: float = 600.0
    failed: float = 15.0
    terminated: float = 15.0


class Watched(Protocol):
    """A rank as `Watch` sees it, here or on another machine.

    `number` is its rank. The exit code is negative if a signal has killed the process; `ended_by_us` says whether that
    signal was the launcher's.
    """

    number: int
    ended_by_us: bool

    @property
    def place(self) -> str:
        """The process id, for messages; on another machine also its name."""

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or to it and all that it has started."""

    def read_errors(self, otherwise: int = 0) -> list[str]:
        """Return the last error in the rank's stderr with its traceback; without one, so many of the last lines."""


class Watch:
    """Waits for the end of all ranks, passes signals on, and ends the others when one fails.

    Args:
        ranks: the processes.
        signals: those that this process has received; taken from the list once they are passed on.
        patience: how long to wait.
    """

    def __init__(self, ranks: Sequence[Watched], signals: list[int], patience: Patience) -> None:
        self.ranks = ranks
        self.signals = signals
        self.patience = patience
        self.stopped = 0  # the first stop signal that was passed on,
        self.stopped_at = 0.0  # and when, by the monotonic clock
        self.ended: list[Watched] = []  # in this order
        self.left = float("inf")  # seconds until the next measure,
        self.silent = float("inf")  # and until the ranks are named that run on after another one's success
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
            self.left, self.silent = self.left - TICK, self.silent - TICK
            if self.left <= 0 and len(self.ended) < len(self.ranks):
                self._end_others()
            if self.silent <= 0:
                self._name_others()
        return self._report()

    def _shorten(self, rank: Watched) -> None:
        """Give the other ranks no more time than the end of this one leaves them."""
        if rank.code and len(self.measures) == 2:
            agreed = rank.code in AGREED or self._was_stopped(rank)
            self.left = min(self.left, self.patience.agreed if agreed else self.patience.failed)
        if not rank.code:
            self.silent = min(self.silent, self.patience.agreed)

    def _name_others(self) -> None:
        """Name the ranks that are waited for. None is ended: rank 0 may still write a model, or wait for a tracker."""
        self.silent = float("inf")
        for rank in self.ranks:
            if rank.code is None:
                say(
                    f"rank {rank.number} ({rank.place}) still runs {self.patience.agreed:.0f} s after another rank has "
                    "ended without an error. It is waited for; end it if it hangs."
                )

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
                self._pass_stop_on(number)

    def _pass_stop_on(self, number: int) -> None:
        for rank in self.ranks:
            rank.send(number)
        if not self.stopped:
            self.stopped, self.stopped_at = number, time.monotonic()
        elif time.monotonic() - self.stopped_at > REPEATED:  # a later signal ends a run at once
            self.left = min(self.left, self.patience.failed)

    def _suspend(self) -> None:
        """Stop all ranks with what they have started, and this process, as Ctrl-Z does; go on when it goes on."""
        for rank in self.ranks:
            rank.send(signal.SIGSTOP, group=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        for rank in self.ranks:
            rank.send(signal.SIGCONT, group=True)

    def _was_stopped(self, rank: Watched) -> bool:
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
            say(_describe_kill(first))
            return LOST
        return code

    def _show_errors(self, first: Watched) -> None:
        """Show what the first rank to fail has said, and the errors of others: of a common one, one rank tells."""
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
            " If memory ran out, the kernel's log says so (dmesg): fewer ranks, a smaller "
            "learner.tokens_per_microbatch or parallel.shard=full need less."
        )
    return (
        f"error: rank {rank.number} ({rank.place}) was killed by {name}.{hint} "
        "Resume from the last checkpoint with --resume --out DIR."
    )


def say(line: str) -> None:
    """Print a line of the launcher to stderr."""
    with suppress(OSError):  # the terminal may be closed
        os.write(2, line.encode() + b"\n")
