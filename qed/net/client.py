"""An HTTP client for JSON and streamed lines, with keep-alive, deadlines, and cancellation from any thread.

Redirects are not followed, because the key would be sent along. Nothing is retried here, except on a reused connection
that the server has closed in the meantime.
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from qed.errors import UsageError
from qed.net.deadlines import CancelScope, Deadline, keeper
from qed.net.keys import read_key

MAX_BYTES = 16 * 2**20  # of a reply
SHOWN = 200  # the most characters of an error reply in a message
IDLE = 4.0  # seconds to keep an unused connection; servers close them after 5 (uvicorn) or more
CONNECT = 20.0  # the most seconds to connect
Kind = Literal["refused", "timed out", "closed", "status", "cancelled", "invalid", "failed"]


class RequestError(Exception):
    """A failed request; the message says why.

    Args:
        message: the reason; it names the server.
        kind: `refused`: no connection could be made; `timed out`; `closed`: the connection ended early; `status`: the
            server replied with an error; `cancelled`; `invalid`: the reply is too long or cannot be parsed.
        status: the status code of the reply, if there was one.
        wait: the seconds that the server asks to wait.
    """

    def __init__(self, message: str, kind: Kind = "failed", status: int = 0, wait: float = 0.0) -> None:
        super().__init__(message)
        self.kind, self.status, self.wait = kind, status, wait


@dataclass(frozen=True)
class Reply:
    """A complete reply: its status, its headers with lower-case names, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpClient:
    """A client of one server; thread-safe.

    Args:
        url: the server's address, such as http://127.0.0.1:8000, to which the paths of requests are appended.
        key_variable: the environment variable with the key, sent as a bearer token; empty or unset sends none.

    Raises:
        UsageError: the address is not an http or https address, or the key cannot be sent.
    """

    def __init__(self, url: str, key_variable: str = "") -> None:
        check_address(url)
        read_key(key_variable)
        self.url, self.key_variable = url.rstrip("/"), key_variable
        parts = urlsplit(self.url)
        self.name = parts.netloc
        self._base, self._whole = parts.path, urlsplit(url)._replace(scheme="", netloc="", fragment="").geturl()
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()
        self.scope = CancelScope()

    def close(self) -> None:
        """Cancel all requests, and refuse further ones."""
        self.scope.cancel()
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def request(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        seconds: float,
        max_bytes: int = MAX_BYTES,
        scopes: Sequence[CancelScope] = (),
    ) -> Reply:
        """Send a request and return the reply, whatever its status.

        Args:
            method: the HTTP method, such as GET.
            path: the path, beginning with a slash; empty is the client's address itself.
            content: a value to send as JSON; None sends no body.
            seconds: the deadline, from connecting to the last byte.
            max_bytes: the largest body of the reply.
            scopes: cancelling any of them cancels the request.

        Raises:
            RequestError: there was no complete reply.
        """
        deadline = Deadline(seconds, seconds)
        with self._exchange(method, path, content, deadline, scopes) as reply:
            body = reply.read(max_bytes + 1)
            if len(body) > max_bytes:
                raise RequestError(f"{self.name}: the reply has more than {max_bytes:,} bytes", "invalid")
            if reply.length:
                raise http.client.IncompleteRead(body, reply.length)
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, body)

    def ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        seconds: float,
        max_bytes: int = MAX_BYTES,
        scopes: Sequence[CancelScope] = (),
    ) -> Any:
        """Send a request and return the JSON of its reply, None if it has no body; see `request`.

        Raises:
            RequestError: there was no complete reply, its status is an error, or it is not JSON.
        """
        reply = self.request(method, path, content, seconds=seconds, max_bytes=max_bytes, scopes=scopes)
        self._require_success(reply.status, reply.body)
        if not reply.body:
            return None
        try:
            return json.loads(reply.body)
        except ValueError as error:
            raise RequestError(f"{self.name}: the reply is not JSON", "invalid", reply.status) from error

    def stream(
        self,
        path: str,
        content: Any,
        *,
        silence: float,
        seconds: float = float("inf"),
        max_bytes: int = MAX_BYTES,
        scopes: Sequence[CancelScope] = (),
    ) -> Iterator[bytes]:
        """Post a request and yield the lines of its reply as they arrive; closing the iterator ends the request.

        Args:
            path: the path, beginning with a slash.
            content: a value to send as JSON.
            silence: the most seconds without data.
            seconds: the most seconds in total.
            max_bytes: the most bytes of a line.
            scopes: cancelling any of them cancels the request.

        Raises:
            RequestError: the status is an error, a line is too long, or the connection ends before the reply does.
        """
        deadline = Deadline(silence, seconds)
        with self._exchange("POST", path, content, deadline, scopes) as reply:
            if not 200 <= reply.status < 300:
                self._require_success(reply.status, reply.read(MAX_BYTES))
            line = bytearray()
            while data := reply.read1(2**16):
                deadline.extend()
                *whole, rest = data.split(b"\n")
                for part in whole:
                    yield bytes(line) + part
                    line.clear()
                    deadline.extend()  # do not count the time that the caller took
                line += rest
                if len(line) > max_bytes:
                    raise RequestError(f"{self.name}: a line of the reply has more than {max_bytes:,} bytes", "invalid")
            if reply.length:
                raise http.client.IncompleteRead(b"", reply.length)
            if line:
                yield bytes(line)

    def _require_success(self, status: int, body: bytes) -> None:
        if not 200 <= status < 300:
            shown = read_reason(body)
            raise RequestError(f"{self.name} refuses the request with status {status}: {shown}", "status", status)

    @contextmanager
    def _exchange(
        self, method: str, path: str, content: Any, deadline: Deadline, scopes: Sequence[CancelScope]
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield its reply; the connection is kept for reuse if the reply is read completely."""
        body = None if content is None else json.dumps(content).encode()
        scopes = (self.scope, *scopes)
        keeper.add(deadline)
        connection: http.client.HTTPConnection | None = None
        reply: http.client.HTTPResponse | None = None
        kept = False
        try:
            for connection, reused in self._connect(scopes, deadline):
                try:
                    connection.request(
                        method, self._base + path if path else self._whole or "/", body, self._headers(body)
                    )
                    reply = connection.getresponse()
                    break
                except (ConnectionError, http.client.HTTPException):
                    if not reused or deadline.check() or any(each.cancelled for each in scopes):
                        raise
                    self._drop(connection, scopes)
            assert reply is not None
            yield reply
            kept = reply.isclosed() and not reply.will_close and not deadline.passed
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # A socket that another thread closes raises one of the last two.
            raise self._explain(error, deadline, scopes, began=reply is not None) from error
        finally:
            keeper.remove(deadline)
            if connection is not None:
                self._drop(connection, scopes, kept)

    def _connect(
        self, scopes: Iterable[CancelScope], deadline: Deadline
    ) -> Iterator[tuple[http.client.HTTPConnection, bool]]:
        """Yield kept connections while there are any, then a new one; each with whether it is reused."""
        while True:
            connection = self._take_idle()
            reused = connection is not None
            connection = connection or self._make_connection(deadline)
            for scope in scopes:
                scope.add(connection)
            deadline.connection = connection
            if not any(scope.cancelled for scope in scopes) and not reused:
                self._open(connection, scopes)
            if any(scope.cancelled for scope in scopes):  # possibly while connecting, when there was no socket to close
                self._drop(connection, scopes)
                raise RequestError("the request was cancelled", "cancelled")
            yield connection, reused

    def _open(self, connection: http.client.HTTPConnection, scopes: Iterable[CancelScope]) -> None:
        try:
            connection.connect()
        except OSError as error:
            self._drop(connection, scopes)
            kind: Kind = "timed out" if isinstance(error, TimeoutError) else "refused"
            reason = f"no connection within {connection.timeout:.3g} s" if kind == "timed out" else error
            raise RequestError(f"{self.name}: {reason}", kind) from error
        connection.sock.settimeout(None)  # from here on the deadline applies

    def _make_connection(self, deadline: Deadline) -> http.client.HTTPConnection:
        seconds = min(CONNECT, deadline.left)
        if self._context is not None:
            return http.client.HTTPSConnection(self.name, timeout=seconds, context=self._context)
        return http.client.HTTPConnection(self.name, timeout=seconds)

    def _take_idle(self) -> http.client.HTTPConnection | None:
        """Return a kept connection that the server has not closed."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, connection = self._idle.pop()
            # Readable: closed by the server, or unexpected data. `select.select` takes no descriptor above 1,023.
            poller = select.poll()
            poller.register(connection.sock, select.POLLIN)
            if time.monotonic() - since < IDLE and not poller.poll(0):
                return connection
            connection.close()

    def _drop(self, connection: http.client.HTTPConnection, scopes: Iterable[CancelScope], kept: bool = False) -> None:
        for scope in scopes:
            scope.remove(connection)
        if kept and not self.scope.cancelled:
            with self._lock:
                self._idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def _explain(
        self, error: Exception, deadline: Deadline, scopes: Iterable[CancelScope], began: bool
    ) -> RequestError:
        if any(scope.cancelled for scope in scopes):
            return RequestError("the request was cancelled", "cancelled")
        if deadline.check():
            return RequestError(
                f"{self.name}: no {'whole ' if began else ''}reply within {deadline.limit:g} s", "timed out"
            )
        if isinstance(error, ValueError | AttributeError):
            raise error
        reason = str(error) or type(error).__name__
        return RequestError(f"{self.name}: the connection ended before the reply did: {reason}", "closed")

    def _headers(self, body: bytes | None) -> dict[str, str]:
        key = read_key(self.key_variable)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        return {**headers, **({"Authorization": f"Bearer {key}"} if key else {})}


def check_address(url: str) -> None:
    """Check that an address can be requested.

    Raises:
        UsageError: it is not an http or https address, or it contains a user or password.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        sent = host + f"{parts.path}?{parts.query}".encode("ascii")
        valid = parts.scheme in ("http", "https") and host != b"" and parts.port != 0 and min(sent) > ord(" ")
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"'{url}' is not an address such as http://127.0.0.1:8000/v1.")
    if parts.username or parts.password:
        raise UsageError("An address must not contain a user or password: put a key into an environment variable.")


def read_reason(body: bytes) -> str:
    """Return what a reply says about an error: the message in OpenAI's or FastAPI's format, else its beginning."""
    text = body.decode(errors="replace")
    try:
        content = json.loads(text)
        found = content.get("error", content.get("detail", content.get("message")))
        text = found.get("message", text) if isinstance(found, dict) else found if isinstance(found, str) else text
    except (ValueError, AttributeError):
        pass
    return " ".join(str(text)[: 4 * SHOWN].split())[:SHOWN]


def read_events(lines: Iterable[bytes]) -> Iterator[Any]:
    """Yield the JSON of server-sent events until the event [DONE].

    Raises:
        RequestError: an event is not JSON, or the stream ends without [DONE].
    """
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            yield json.loads(data)
        except ValueError as error:
            raise RequestError("an event of the stream is not JSON", "invalid") from error
    raise RequestError("the stream of events ended too early", "closed")
