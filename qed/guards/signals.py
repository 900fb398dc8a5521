"""Ctrl-C and SIGTERM ask a run to stop after its step; a second one ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# The shell's convention: 128 and the number of the signal.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Stop:
    """Whether a signal has asked to stop; read between steps."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of the signal received."""
        return EXIT_CODES[self.received] if self.received is not None else 0


@contextmanager
def watched() -> Iterator[Stop]:
    """Signals set a flag while the block runs; outside of the main thread, where Python allows no handlers, none is
    set."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.received = signal.Signals(number)
        # print() is not safe inside a signal handler, a bare write is.
        os.write(2, b"\nStopping after this step, with a checkpoint; once more ends at once.\n")
        for known, handler in before.items():
            signal.signal(known, handler)

    before = {number: signal.signal(number, ask) for number in EXIT_CODES}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
