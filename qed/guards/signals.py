"""SIGINT, SIGTERM and SIGHUP stop a run and save it; a later one ends it at once. SIGUSR1 requests a checkpoint.

Signals within a second of the first one count as the same request: `timeout` and job managers send a signal to a
process and to its group, and `uv run` forwards it as well.

A handler only sets a flag. Long-running code calls `check_signals` between two pieces of work, which raises
`Interrupted` after a stop signal; the training loop catches it and saves the last complete step. The flag is global to
the process, as signals are, so samplers, graders and the learner need no argument for it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from qed.errors import Interrupted
from qed.guards import faults
from qed.guards.watchdog import beat

# The shell's convention: 128 plus the signal number.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
SAVE = signal.SIGUSR1
STOPPING = b"\nStopping: saving the last complete step. A later signal ends the run at once.\n"
REPEATED = 1.0  # seconds within which another signal counts as a repetition of the first one
SAVING = b"\nA checkpoint will be saved after this step.\n"


class Stop:
    """The flags that signals set.

    `received` is the stop signal, possibly reported by another rank; `received_at` is when this process itself first
    got one. `save` says whether a checkpoint is requested after the step. While `deferred` is set, `check_signals` does
    not stop the run, because its state is inconsistent between two steps.

    If `together` is set, the process communicates with others that must not be left waiting: `check_signals` then stops
    the run only for a signal that all have `agreed` on, or inside `allow_stop_in_section`.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.received_at: float | None = None  # by the monotonic clock
        self.agreed: signal.Signals | None = None
        self.save = False
        self.deferred = False
        self.together = False

    @property
    def wanted(self) -> signal.Signals | None:
        """The signal that stops the run here; None if there is none."""
        return None if self.deferred else self.agreed if self.together else self.received


_watching: list[Stop] = []
_of_thread = threading.local()  # `stop`: the flags that stop this thread in place of the process's


def check_signals(point: str, progress: bool = True) -> None:
    """Stop here if a signal has requested it, and report progress to the watchdog.

    Args:
        point: the name of this place in the code, for fault injection.
        progress: whether work has been done since the last call; False while waiting for other processes.

    Raises:
        Interrupted: a stop signal was received, and signals are not deferred.
    """
    if progress:
        beat()
    faults.hit(point)
    stop = getattr(_of_thread, "stop", None) or (_watching[0] if _watching else None)
    if stop is not None and (wanted := stop.wanted) is not None:
        raise Interrupted(
            f"Stopped by {wanted.name}. There was nothing to save; the same command starts over.",
            EXIT_CODES[wanted],
        )


@contextmanager
def allow_stop_in_section() -> Iterator[None]:
    """Let `check_signals` stop this process alone within the block; the caller must inform the other processes."""
    for stop in _watching[:1]:
        together, stop.together = stop.together, False
        try:
            yield
        finally:
            stop.together = together
        return
    yield


@contextmanager
def stop_thread_by(stop: Stop) -> Iterator[None]:
    """Make `check_signals` in this thread obey only these flags within the block; the main thread sets them."""
    _of_thread.stop = stop
    try:
        yield
    finally:
        del _of_thread.stop


@contextmanager
def watch_signals() -> Iterator[Stop]:
    """Install the signal handlers while the block runs, and yield their flags.

    Nested blocks share one set of flags. Outside of the main thread no handlers are installed, as Python allows none.
    """
    stop = _watching[0] if _watching else Stop()
    if _watching or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    _watching.append(stop)
    previous = _install_handlers(stop)
    try:
        yield stop
    finally:
        _watching.remove(stop)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _install_handlers(stop: Stop) -> dict[signal.Signals, Any]:
    """Install handlers that set the flags, and return the previous ones."""

    def request_stop(number: int, frame: FrameType | None) -> None:
        if stop.received_at is None:  # another rank may have reported the signal before Python calls this
            stop.received, stop.received_at = stop.received or signal.Signals(number), time.monotonic()
            _write_stderr(STOPPING)
        elif time.monotonic() - stop.received_at > REPEATED:
            end_at_once(number)

    def end_at_once(number: int) -> None:
        for each in stop_signals:
            # A shell starts background jobs with SIGINT ignored, but a later signal must end them too.
            signal.signal(each, signal.SIG_DFL if previous[each] == signal.SIG_IGN else previous[each])
        signal.raise_signal(number)

    def request_save(number: int, frame: FrameType | None) -> None:
        stop.save = True
        _write_stderr(SAVING)

    previous = {number: signal.getsignal(number) for number in (*EXIT_CODES, SAVE)}
    # Under nohup SIGHUP is ignored, and stays ignored.
    stop_signals = [number for number in EXIT_CODES if number != signal.SIGHUP or previous[number] != signal.SIG_IGN]
    for number in stop_signals:
        signal.signal(number, request_stop)
    signal.signal(SAVE, request_save)
    return previous


def _write_stderr(line: bytes) -> None:
    """Write to stderr with os.write, because print() is not safe inside a signal handler; ignore a closed terminal."""
    with suppress(OSError):
        os.write(2, line)
