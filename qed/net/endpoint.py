"""POST JSON to an HTTP server: each request has one deadline, failures that may pass are retried, replies are bounded.

The deadline holds for a whole attempt, also if the server sends a byte now and then: a timer closes the connection.
Redirects are not followed, because the key would travel with them.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from qed.errors import UsageError

PASSING = {408, 425, 429, 500, 502, 503, 504, 529}  # states of a server that may pass
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between two attempts; the wait doubles from the first to the longest
MAX_BYTES = 16 * 2**20  # of a reply
SHOWN = 200  # characters of a refusal in a message


class RequestError(Exception):
    """A request that has failed for good; the message says why.

    Args:
        message: says why.
        status: of the server's reply; 0 if there was none.
        body: of the reply, as far as it is text.
        passing: whether the same request may succeed later.
        wait: seconds that the server asks to wait.
    """

    def __init__(self, message: str, status: int = 0, body: str = "", passing: bool = False, wait: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.body, self.passing, self.wait = status, body, passing, wait


class _PassingError(RequestError):
    """A failed attempt that may succeed when repeated, `wait` seconds later at the earliest."""


@dataclass
class Endpoint:
    """A server's address that takes JSON and returns JSON. It may be used from several threads.

    Args:
        url: of the form http://host:8000/v1/classify.
        key_variable: the environment variable with the key, sent as a bearer token; empty or unset sends none.
        seconds: deadline of an attempt.
        attempts: the most attempts of a request.

    Raises:
        UsageError: the address is not one of http or https.
    """

    url: str
    key_variable: str = ""
    seconds: float = 60.0
    attempts: int = 4
    _closed: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _open: set[http.client.HTTPConnection] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse an address that cannot be requested."""
        parts = urlsplit(self.url)
        try:
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise UsageError(f"'{self.url}' is not an address such as http://127.0.0.1:8000/v1.")
        if parts.username or parts.password:
            raise UsageError("An address must not contain a user or password: put a key into an environment variable.")
        if self.seconds <= 0 or self.attempts < 1:
            raise UsageError("A request needs a deadline above 0 seconds, and at least one attempt.")

    def post(self, content: Any) -> Any:
        """Send a value as JSON and return the reply.

        Raises:
            RequestError: no attempt has succeeded, the server refuses the request, or the endpoint is closed.
        """
        body = json.dumps(content).encode()
        for attempt in range(1, self.attempts + 1):
            try:
                return self._attempt(body)
            except _PassingError as error:
                if attempt == self.attempts:
                    told = f"{error} ({attempt} attempts)" if attempt > 1 else str(error)
                    raise RequestError(told, error.status, error.body, True, error.wait) from error
                doubled = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
                if self._closed.wait(max(doubled, min(LONGEST_WAIT, error.wait))):
                    break
        raise RequestError("the request was cancelled")

    def close(self) -> None:
        """End all requests, also those that wait for their next attempt."""
        self._closed.set()
        for connection in list(self._open):
            _shut(connection)

    def _attempt(self, body: bytes) -> Any:
        if self._closed.is_set():
            raise RequestError("the request was cancelled")
        parts = urlsplit(self.url)
        began = time.monotonic()
        with self._connect() as connection:
            timer = threading.Timer(self.seconds, _shut, (connection,))
            timer.daemon = True
            timer.start()
            try:
                connection.connect()
                if self._closed.is_set():  # while it was connecting, when there was no socket to end
                    raise RequestError("the request was cancelled")
                connection.request(
                    "POST", parts.path + (f"?{parts.query}" if parts.query else ""), body, self._headers()
                )
                reply = connection.getresponse()
                text = reply.read(MAX_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                late = time.monotonic() - began >= self.seconds
                reason = f"no reply within {self.seconds:g} s" if late else str(error) or type(error).__name__
                raise _PassingError(f"{parts.netloc}: {reason}") from error
            finally:
                timer.cancel()
            return self._read_reply(reply, text, late=time.monotonic() - began >= self.seconds)

    def _read_reply(self, reply: http.client.HTTPResponse, text: bytes, late: bool) -> Any:
        name = urlsplit(self.url).netloc
        body = text.decode(errors="replace")
        if reply.status in PASSING:
            wait = _read_wait(reply.getheader("Retry-After"))
            raise _PassingError(f"{name}: status {reply.status}", reply.status, body, wait=wait)
        if not 200 <= reply.status < 300:
            shown = " ".join(body[:SHOWN].split())
            raise RequestError(f"{name} refuses the request with status {reply.status}: {shown}", reply.status, body)
        if len(text) > MAX_BYTES:
            raise RequestError(f"{name}: the reply has more than {MAX_BYTES:,} bytes")
        try:
            return json.loads(text)
        except ValueError as error:
            if text.lstrip()[:1] == b"<":
                raise RequestError(
                    f"{name}: the reply is not JSON but a web page; the address of an API usually ends in /v1",
                    reply.status,
                    body,
                ) from error
            # A reply that the deadline has cut looks like this.
            reason = f"no whole reply within {self.seconds:g} s" if late else "the reply is not JSON"
            raise _PassingError(f"{name}: {reason}") from error

    @contextmanager
    def _connect(self) -> Iterator[http.client.HTTPConnection]:
        parts = urlsplit(self.url)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(parts.netloc, timeout=self.seconds, context=context)
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=self.seconds)
        self._open.add(connection)
        try:
            yield connection
        finally:
            self._open.discard(connection)
            connection.close()

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(self.key_variable, "") if self.key_variable else ""
        return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}


def _shut(connection: http.client.HTTPConnection) -> None:
    """End a connection from another thread, so that what reads from it returns."""
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _read_wait(header: str | None) -> float:
    """Return the seconds that a server asks to wait, given as a number or as a date; nonsense counts as 0."""
    with suppress(ValueError):
        return max(0.0, float(header or 0))
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(header or "").timestamp() - time.time())
    return 0.0
