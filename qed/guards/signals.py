"""SIGINT, SIGTERM and SIGHUP ask a run to stop where it stands, a second one ends it at once; SIGUSR1 asks for a
checkpoint.

A handler sets a flag and nothing else. Whoever works for long calls `poll` between two pieces of work: it raises
`Interrupted` once a stop has been asked for, and whoever knows what is whole catches that and saves it. Signals belong
to the process, and so does the flag: samplers, graders and the learner need not be told of it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from qed.errors import Interrupted
from qed.guards import faults
from qed.guards.watchdog import beat

# The shell's convention: 128 and the number of the signal.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
SAVE = signal.SIGUSR1
STOPPING = b"\nStopping, once what is whole is saved; a second signal ends at once.\n"
SAVING = b"\nA checkpoint follows this step.\n"


class Stop:
    """What signals have asked for.

    `received` is the one that asks to stop, `save` tells whether a checkpoint is wanted at the end of the step. While
    `held`, polls let the work go on, because what it has changed is not whole again yet.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.save = False
        self.deferred = False

    @property
    def exit_code(self) -> int:
        """The exit code of the signal received."""
        return EXIT_CODES[self.received] if self.received is not None else 0


_watching: list[Stop] = []


def check_signals(point: str, progress: bool = True) -> None:
    """Between two pieces of work: go on, or stop because a signal has asked for it.

    Args:
        point: the name of this place, for faults.
        progress: whether a piece has been done, which the watchdog counts; not where others' work is waited for.

    Raises:
        Interrupted: a signal has come, and nothing is held.
    """
    if progress:
        beat()
    faults.hit(point)
    stop = _watching[0] if _watching else None
    if stop is not None and stop.received is not None and not stop.deferred:
        raise Interrupted(
            f"Stopped by {stop.received.name}. There was nothing to save; the same command begins again.",
            stop.exit_code,
        )


@contextmanager
def watch_signals() -> Iterator[Stop]:
    """Signals set a flag while the block runs. A block within another shares its flag; outside of the main thread,
    where Python allows no handlers, none is set."""
    stop = _watching[0] if _watching else Stop()
    if _watching or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    _watching.append(stop)
    before = _build_handler(stop)
    try:
        yield stop
    finally:
        _watching.remove(stop)
        for number, handler in before.items():
            signal.signal(number, handler)


def _build_handler(stop: Stop) -> dict[signal.Signals, Any]:
    """Let signals set the flag; what handled them before."""

    def ask(number: int, frame: FrameType | None) -> None:
        stop.received = signal.Signals(number)
        _say(STOPPING)
        for known in asking:
            # A shell hands a job in the background SIGINT ignored, and a second one must end it all the same.
            signal.signal(known, signal.SIG_DFL if before[known] == signal.SIG_IGN else before[known])

    def save(number: int, frame: FrameType | None) -> None:
        stop.save = True
        _say(SAVING)

    before = {number: signal.getsignal(number) for number in (*EXIT_CODES, SAVE)}
    # nohup is a wish to outlive the terminal.
    asking = [number for number in EXIT_CODES if number != signal.SIGHUP or before[number] != signal.SIG_IGN]
    for number in asking:
        signal.signal(number, ask)
    signal.signal(SAVE, save)
    return before


def _say(line: bytes) -> None:
    """To stderr by a bare write, because print() is not safe inside a signal handler; a terminal may be gone."""
    with suppress(OSError):
        os.write(2, line)
