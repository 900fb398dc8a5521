"""End connections at their deadlines and on request, also while a thread reads from them or writes to them.

A time-out of a socket holds between two bytes, so a server that sends a byte now and then would never reach it. Here
one thread for all connections closes those whose deadline has passed.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from contextlib import suppress


def shut(connection: http.client.HTTPConnection) -> None:
    """End a connection from another thread, so that what reads from it returns."""
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            # Not the method of an SSL socket, which would take its state away from the thread that reads.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


class CancelScope:
    """Requests that are cancelled together, from any thread. A cancelled scope refuses further ones."""

    def __init__(self) -> None:
        self.cancelled = False
        self._event = threading.Event()
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """End all requests of this scope."""
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
        """Let `cancel` end a connection too."""
        with self._lock:
            self._open.add(connection)

    def remove(self, connection: http.client.HTTPConnection) -> None:
        """Forget a connection."""
        with self._lock:
            self._open.discard(connection)


class Deadline:
    """When a connection is ended: after a silence, or at the end of its time in total, whichever comes first.

    Args:
        silence: seconds without progress; see `extend`.
        total: seconds altogether.
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
        """The seconds until it passes; at least 1 ms."""
        return max(1e-3, self.at - time.monotonic())

    @property
    def limit(self) -> float:
        """The seconds that it allows where it is: of silence, or altogether."""
        return self.silence if self.at < self.end else self.total

    def extend(self) -> None:
        """Begin the silence anew, because something has come."""
        self.at = min(self.end, time.monotonic() + self.silence)

    def check(self) -> bool:
        """Return whether it has passed."""
        self.passed = self.passed or time.monotonic() >= self.at
        return self.passed


class _Keeper:
    """The thread that ends connections at their deadlines; it is started with the first one."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin without a thread, also in a forked process."""
        self.changed = threading.Condition()
        self.watched: set[Deadline] = set()
        self.thread: threading.Thread | None = None

    def add(self, deadline: Deadline) -> None:
        """Watch a deadline, until `remove`."""
        with self.changed:
            self.watched.add(deadline)
            if self.thread is None:
                self.thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self.thread.start()
            self.changed.notify()

    def remove(self, deadline: Deadline) -> None:
        """Watch a deadline no longer."""
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
