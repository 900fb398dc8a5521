"""A session with one child of a fork server: it answers one question at a time, within limits."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOADING_SECONDS = 120.0  # for the imports and the preparation of the target, once per server process
UNREADABLE = "the reply cannot be read"
TIMED_OUT = {signal.SIGPROF, signal.SIGXCPU, signal.SIGALRM}


class TimedOutError(Exception):
    """Raised when a child was killed because it reached a time limit; the message says which one."""


class FailedError(Exception):
    """Raised when a child raised an exception or died; the message says how."""


class NotLoadedError(Exception):
    """Raised when the server process could not load the target."""


@dataclass(frozen=True)
class Limits:
    """The limits of one question. CPU time is the main one, because it does not depend on the load of the machine.

    `cpu` and `wall` are seconds per question, `memory` is bytes on top of what the loaded target uses, and `reply` is
    bytes of JSON.
    """

    cpu: float = 10.0
    wall: float = 60.0
    memory: int = 4 << 30
    reply: int = 64 << 20


LIMITS = Limits()


class Session:
    """A session with one child of a fork server, which answers one question at a time.

    Args:
        channel: the socket to the child.
        limits: of each question.
        end_child: ends the child with a pid and returns its exit status.
    """

    def __init__(self, channel: socket.socket, limits: Limits, end_child: Callable[[int], int]) -> None:
        self._channel, self._limits, self._end_child = channel, limits, end_child
        self.pid = 0
        try:
            greeting = self._read_line(time.monotonic() + LOADING_SECONDS, {"pid", "failed"})
        except (TimeoutError, FailedError) as error:
            greeting = {"failed": str(error) or f"loading took more than {LOADING_SECONDS:g} s"}
        if greeting is None or "failed" in greeting:
            self.close()
            raise NotLoadedError(greeting["failed"] if greeting else "the grading process could not be started")
        self.pid, self.about = greeting["pid"], greeting["about"]

    def ask(self, question: Any, scale: float = 1.0, waited: float = 0.0) -> Any:
        """Ask the child a question and return its answer.

        An exception closes the session, unless the question is not JSON or the child raised the error itself.

        Args:
            question: JSON.
            scale: factor on the limits, for a question about several answers.
            waited: seconds of the wall-clock limit that are already used.

        Raises:
            TimedOutError: a time limit was reached.
            FailedError: the question is not JSON; or the child raised (it stays alive), reached its memory limit,
                sent too much or something unreadable, or died.
        """
        limits = self._limits
        try:
            message = json.dumps([limits.cpu * scale, question]).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise FailedError(f"the question cannot be sent: {error}") from error
        try:
            reply = self._exchange(message, time.monotonic() + limits.wall * scale - waited)
        except TimeoutError:
            self.close()
            raise TimedOutError(f"more than {limits.wall * scale:g} s of wall-clock time") from None
        except OSError:
            reply = None
        except BaseException:  # a late answer on this channel would belong to no question
            self.close()
            raise
        if reply is None:
            raise self._explain_death(limits.cpu * scale)
        if "error" in reply:
            raise FailedError(reply["error"] if isinstance(reply["error"], str) else UNREADABLE)
        return reply["answer"]

    def _exchange(self, message: bytes, deadline: float) -> Any:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._channel.settimeout(seconds)
        self._channel.sendall(message)
        return self._read_line(deadline, {"answer", "error"})

    @property
    def idle(self) -> bool:
        """Whether the child is alive and waits for a question."""
        self._channel.setblocking(False)
        try:
            self._channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # the child ended, or sent something unrequested

    def _explain_death(self, cpu: float) -> Exception:
        """Close the session and build the exception that says why the child died."""
        status = self.close()
        if -status in TIMED_OUT:
            return TimedOutError(f"more than {cpu:g} s of CPU time")
        return FailedError(f"the process ended with {signal.Signals(-status).name if status < 0 else f'code {status}'}")

    def _read_line(self, deadline: float, keys: set[str]) -> Any:
        """Read one reply, a line of untrusted JSON with at least one of the keys; None if the child has died."""
        line = bytearray()
        while not line.endswith(b"\n"):
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            self._channel.settimeout(seconds)
            try:
                piece = self._channel.recv(1 << 20)
            except ConnectionError:
                piece = b""
            if not piece:
                return None
            line += piece
            if len(line) > self._limits.reply:
                raise FailedError(f"the reply has more than {self._limits.reply >> 20} MiB")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FailedError(UNREADABLE) from error
        if not isinstance(reply, dict) or not reply.keys() & keys:
            raise FailedError(UNREADABLE)
        return reply

    def close(self) -> int:
        """End the child and return its exit status."""
        self._channel.close()
        pid, self.pid = self.pid, 0
        return self._end_child(pid) if pid else 0

    @property
    def alive(self) -> bool:
        """Whether the session is open for another question."""
        return self.pid > 0
