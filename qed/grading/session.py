"""One child of a clean process, asked one question after the other within limits; see fork_server.py."""

from __future__ import annotations

import json
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qed.grading.fork_server import ForkServer

LOADING_SECONDS = 120.0  # of the imports and of what the target prepares, once a process
LONGEST_TOLD = 64 << 20  # bytes of one answer; a child that says more is ended
SAID = {"number", "failed", "answer", "error"}
TIMED_OUT = {signal.SIGPROF, signal.SIGXCPU, signal.SIGALRM}


class TimedOutError(Exception):
    """A child was ended because it took too long; the text says by which measure."""


class FailedError(Exception):
    """A child raised, or died; the text says how."""


class NotLoadedError(Exception):
    """The clean process could not load what its children need."""


@dataclass(frozen=True)
class Limits:
    """What one question may cost: processor time first, because it does not depend on what else the machine does.

    `cpu` and `wall` are seconds for each question, `memory` is in bytes beyond what loading took.
    """

    cpu: float = 10.0
    wall: float = 60.0
    memory: int = 4 << 30


LIMITS = Limits()


class Session:
    """One child of a clean process, asked one question after the other."""

    def __init__(self, zygote: ForkServer, channel: socket.socket, origin: socket.socket) -> None:
        self.server = zygote
        self._channel, self._origin = channel, origin
        self.number = 0
        try:
            hello = self._read_line(time.monotonic() + LOADING_SECONDS)
        except (TimeoutError, FailedError) as error:
            hello = {"failed": str(error) or f"loading took more than {LOADING_SECONDS:g} s"}
        if hello is None or "failed" in hello:
            self.close()
            raise NotLoadedError(hello["failed"] if hello else "the process that grades could not be started")
        self.number, self.about = hello["number"], hello["about"]

    def ask(self, question: Any, scale: float = 1.0, waited: float = 0.0) -> Any:
        """The child's answer; after an exception the session is closed, unless it was the child that raised.

        Args:
            question: JSON.
            scale: how many times the limits apply, for a question about several answers.
            waited: seconds of the limit by the clock that are spent already.

        Raises:
            TimedOutError: a limit of time was met.
            FailedError: the question is no JSON, or the child raised (then it lives on), met its limit of memory, said
                too much or nothing that can be read, or died.
        """
        limits = self.server.limits
        try:
            message = json.dumps([limits.cpu * scale, question]).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise FailedError(f"the question cannot be sent: {error}") from error
        try:
            told = self._exchange(message, time.monotonic() + limits.wall * scale - waited)
        except TimeoutError:
            self.close()
            raise TimedOutError(f"more than {limits.wall * scale:g} s by the clock") from None
        except OSError:
            told = None
        except BaseException:  # what comes back on this channel from here on belongs to no question
            self.close()
            raise
        if told is None:
            raise self._explain_death(limits.cpu * scale)
        if "error" in told:
            raise FailedError(told["error"])
        return told["answer"]

    def _exchange(self, message: bytes, deadline: float) -> Any:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._channel.settimeout(left)
        self._channel.sendall(message)
        return self._read_line(deadline)

    @property
    def idle(self) -> bool:
        """Whether the child lives and says nothing, as one does that waits for a question."""
        self._channel.setblocking(False)
        try:
            self._channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # its end, or something that nobody asked for

    def _explain_death(self, cpu: float) -> Exception:
        """Why the child died."""
        status = self.close()
        if -status in TIMED_OUT:
            return TimedOutError(f"more than {cpu:g} s of processor time")
        return FailedError(f"the process ended with {signal.Signals(-status).name if status < 0 else f'code {status}'}")

    def _read_line(self, deadline: float) -> Any:
        """What the child says, one line of JSON, of which nothing is believed; None where it has died."""
        line = bytearray()
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(left)
            try:
                piece = self._channel.recv(1 << 20)
            except ConnectionError:
                piece = b""
            if not piece:
                return None
            line += piece
            if len(line) > LONGEST_TOLD:
                raise FailedError(f"it said more than {LONGEST_TOLD >> 20} MiB")
        try:
            told = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FailedError("it said what cannot be read") from error
        if not isinstance(told, dict) or not told.keys() & SAID:
            raise FailedError("it said what cannot be read")
        return told

    def close(self) -> int:
        """End the child; its exit status."""
        self._channel.close()
        number, self.number = self.number, 0
        return self.server.end_child(number, self._origin) if number else 0

    @property
    def alive(self) -> bool:
        """Whether another question may be asked."""
        return self.number > 0
