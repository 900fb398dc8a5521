"""End connections at their deadlines and on request, even while a thread reads from or writes to them.

A socket timeout applies between two bytes, so a server that sends an occasional byte would never reach it. Here one
thread for all connections closes those whose deadline has passed.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from contextlib import suppress


def shut(connection: http.client.HTTPConnection) -> None:
    """End a connection from another thread, so that a blocked read from it returns."""
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            # Not the SSL socket's own method, which would reset its state under the reading thread.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


class CancelScope:
    """Requests that are cancelled together, from any thread. A cancelled scope refuses further requests."""

    def __init__(self) -> None:
        self.cancelled = False
        self._event = threading.Event()
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Cancel all requests of this scope."""
        with self._lock:
            self.cancelled = True
            connections = list(self._open)
        self._event.set()
        for connection in connections:
            shut(connection)

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether the scope was cancelled."""
        return self._event.wait(seconds)

    def add(self, connection: http.client.HTTPConnection) -> None:
        """Add a connection, which `cancel` then ends too."""
        with self._lock:
            self._open.add(connection)

    def remove(self, connection: http.client.HTTPConnection) -> None:
        """Remove a connection."""
        with self._lock:
            self._open.discard(connection)


class Deadline:
    """The deadline of a connection: it ends after a silence or after a total time, whichever comes first.

    Args:
        silence: the most seconds without progress; see `extend`.
        total: the most seconds in total.
    """

    def __init__(self, silence: float, total: float) -> None:
        now = time.monotonic()
        self.total = min(total, threading.TIMEOUT_MAX)
        self.silence = min(silence, self.total)
        self.end = now + self.total
        self.at = now + self.silence
        self.passed = False
        self.connection: http.client.HTTPConnection | None = None

    @property
    def left(self) -> float:
        """The seconds until the deadline; at least 1 ms."""
        return max(1e-3, self.at - time.monotonic())

    @property
    def limit(self) -> float:
        """The limit in seconds that applies: that on silence, or the total."""
        return self.silence if self.at < self.end else self.total

    def extend(self) -> None:
        """Restart the limit on silence, because data has arrived."""
        self.at = min(self.end, time.monotonic() + self.silence)

    def check(self) -> bool:
        """Return whether the deadline has passed."""
        self.passed = self.passed or time.monotonic() >= self.at
        return self.passed


class _Keeper:
    """The thread that ends connections at their deadlines; it starts with the first connection."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Reset to a state without a thread, at first and in a forked process."""
        self.changed = threading.Condition()
        self.watched: set[Deadline] = set()
        self.thread: threading.Thread | None = None

    def add(self, deadline: Deadline) -> None:
        """Watch a deadline until `remove`."""
        with self.changed:
            self.watched.add(deadline)
            if self.thread is None:
                self.thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self.thread.start()
            self.changed.notify()

    def remove(self, deadline: Deadline) -> None:
        """Stop watching a deadline."""
        with self.changed:
            self.watched.discard(deadline)

    def _watch(self) -> None:
        with self.changed:
            while True:
                for deadline in [deadline for deadline in self.watched if deadline.check()]:
                    self.watched.discard(deadline)
                    if deadline.connection is not None:
                        shut(deadline.connection)
                soonest = min((deadline.left for deadline in self.watched), default=None)
                self.changed.wait(soonest)


keeper = _Keeper()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=keeper.begin)
