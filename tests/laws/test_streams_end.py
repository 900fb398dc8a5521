"""Streams and kept connections: what comes is read at once, and every way to end is told from the others."""

from __future__ import annotations

import http.client
import math
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.net import client as net
from qed.net.client import HttpClient, RequestError, read_events, read_reason
from qed.net.deadlines import CancelScope, Deadline

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
Talk = Callable[["Peer"], None]


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def whole(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Peer:
    """The server's end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.send = connection.sendall

    def read_request(self) -> bytes:
        """The request's head and body; empty once the client has gone."""
        data = b""
        with suppress(OSError):
            while b"\r\n\r\n" not in data and (more := self.connection.recv(65536)):
                data += more
            head, _, body = data.partition(b"\r\n\r\n")
            lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            while lengths and len(body) < lengths[0]:
                body += self.connection.recv(65536)
                data = head + b"\r\n\r\n" + body
        return data

    def wait_until_gone(self) -> None:
        """Return once the client has closed the connection."""
        with suppress(OSError):
            while self.connection.recv(65536):
                pass


@contextmanager
def listen(talk: Talk) -> Iterator[tuple[str, Queue[str]]]:
    """Talk to every connection in a thread; yields the address, and a queue with an entry for each that ended."""
    listener, ended = socket.create_server(("127.0.0.1", 0)), Queue[str]()

    def run(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            talk(Peer(connection))
        ended.put("ended")

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=run, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", ended
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # or the thread that accepts would keep the port open,
        accepting.join()  # and might accept from the next listener, if that has the same descriptor
        listener.close()


def test_a_connection_is_used_again_and_renewed_when_the_server_has_closed_it() -> None:
    requests: list[bytes] = []

    def talk(peer: Peer) -> None:
        for _ in range(3):
            requests.append(peer.read_request())
            peer.send(whole(b'{"n": 1}'))

    with listen(talk) as (url, ended), closing(HttpClient(url)) as client:
        for number in range(7):
            assert client.ask("POST", "/x", {"a": number}, seconds=30) == {"n": 1}
            if number % 3 == 2:
                ended.get(timeout=30)
    assert [request.split(b"\r\n")[0] for request in requests if request] == [b"POST /x HTTP/1.1"] * 7


def test_a_kept_connection_may_have_a_high_descriptor() -> None:
    def talk(peer: Peer) -> None:
        while peer.read_request():
            peer.send(whole(b"1"))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        url, _ = stack.enter_context(listen(talk))
        while stack.enter_context(Path(os.devnull).open()).fileno() < 1024:
            pass
        client = stack.enter_context(closing(HttpClient(url)))
        assert [client.ask("GET", "/", seconds=30) for _ in range(2)] == [1, 1]


def test_a_connection_that_is_not_made_is_told_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(connection: http.client.HTTPConnection) -> None:
        raise TimeoutError

    monkeypatch.setattr(http.client.HTTPConnection, "connect", hang)
    with closing(HttpClient("http://x")) as client:
        with pytest.raises(RequestError, match="x: no connection within 20 s"):
            list(client.stream("/", {}, silence=60.0))
        assert not client.scope._open


def test_a_deadline_may_be_endless() -> None:
    assert Deadline(math.inf, math.inf).left <= threading.TIMEOUT_MAX


def test_a_reply_on_a_kept_connection_that_ends_is_asked_for_once_more() -> None:
    answered = threading.Semaphore(1)

    def talk(peer: Peer) -> None:
        peer.read_request()
        peer.send(whole(b"1"))
        if peer.read_request() and not answered.acquire(blocking=False):
            peer.send(whole(b"2"))

    with listen(talk) as (url, _), closing(HttpClient(url)) as client:
        assert client.ask("GET", "/", seconds=30) == 1
        assert client.ask("GET", "/", seconds=30) == 1  # of the second connection


def test_lines_are_read_as_they_come() -> None:
    seen = threading.Semaphore(0)

    def talk(peer: Peer) -> None:
        peer.read_request()
        peer.send(HEAD + chunk(b"one\nt"))
        assert seen.acquire(timeout=30)
        peer.send(chunk(b"wo\n") + chunk(b"\nrest") + END)
        peer.wait_until_gone()

    with listen(talk) as (url, _), closing(HttpClient(url)) as client:
        lines = client.stream("/", {}, silence=30)
        assert next(lines) == b"one"
        seen.release()
        assert list(lines) == [b"two", b"", b"rest"]
        assert len(client._idle) == 1


def talk_in(*parts: bytes) -> Talk:
    """Send the parts, and close the connection."""

    def talk(peer: Peer) -> None:
        peer.read_request()
        for part in parts:
            peer.send(part)

    return talk


def hang(peer: Peer) -> None:
    peer.read_request()
    peer.send(HEAD + chunk(b"one\n"))
    peer.wait_until_gone()


@pytest.mark.parametrize(
    ("talk", "kind", "message"),
    [
        (talk_in(HEAD + chunk(b"one\ntw")), "closed", "ended before the reply did"),
        (talk_in(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\none\n"), "closed", "ended before the reply did"),
        (talk_in(b"garbage\r\n\r\n"), "closed", "ended before the reply did"),
        (talk_in(), "closed", "ended before the reply did"),
        (hang, "timed out", "no whole reply within 0.2 s"),
        (talk_in(HEAD + chunk(b"x" * 200) + END), "invalid", "more than 100 bytes"),
        (talk_in(whole(b'{"error": {"message": "no such\\nmodel"}}', "404 X")), "status", "status 404: no such model"),
        (talk_in(whole(b'{"detail": "Not Found"}', "404 X")), "status", "status 404: Not Found"),
    ],
)
def test_each_way_to_end_has_its_kind(talk: Talk, kind: str, message: str) -> None:
    with listen(talk) as (url, ended), closing(HttpClient(url)) as client:
        with pytest.raises(RequestError, match=message) as caught:
            list(client.stream("/", {}, silence=0.2, max_bytes=100))
        assert caught.value.kind == kind
        assert caught.value.status == (404 if kind == "status" else 0)
        assert ended.get(timeout=30)  # the server sees the end of the connection


def test_a_reply_that_is_cut_is_no_reply() -> None:
    with listen(talk_in(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[1]")) as (url, _):
        with closing(HttpClient(url)) as client, pytest.raises(RequestError) as caught:
            client.ask("GET", "/", seconds=30)
        assert caught.value.kind == "closed"
    with closing(HttpClient(url)) as client, pytest.raises(RequestError, match="refused") as caught:
        client.ask("GET", "/", seconds=30)
    assert caught.value.kind == "refused"


@given(silence=st.floats(0.01, 1e6), total=st.floats(0.01, 1e6))
def test_a_line_begins_the_silence_anew_within_the_total(silence: float, total: float) -> None:
    deadline = Deadline(silence, total)
    first = deadline.at
    deadline.extend()
    assert first <= deadline.at <= deadline.end
    assert deadline.at - first < 60
    assert deadline.left <= min(silence, total)


def test_the_total_ends_a_stream_that_goes_on() -> None:
    def talk(peer: Peer) -> None:
        peer.read_request()
        peer.send(HEAD)
        pause = threading.Event()
        while not pause.wait(0.02):
            peer.send(chunk(b"line\n"))

    with listen(talk) as (url, _), closing(HttpClient(url)) as client:
        seen = list[bytes]()
        with pytest.raises(RequestError, match=r"within 0.3 s") as caught:
            seen.extend(client.stream("/", {}, silence=30, seconds=0.3))
        assert caught.value.kind == "timed out"


@pytest.mark.parametrize("end", ["scope", "client", "iterator"])
def test_a_request_is_cancelled_from_elsewhere_and_the_server_sees_it(end: str) -> None:
    with listen(hang) as (url, ended):
        client, scope = HttpClient(url), CancelScope()
        lines = client.stream("/", {}, silence=60, scopes=[scope])
        assert next(lines) == b"one"
        if end == "iterator":
            lines.close()  # type: ignore[attr-defined]
        else:
            threading.Timer(0.05, scope.cancel if end == "scope" else client.close).start()
            with pytest.raises(RequestError, match="cancelled") as caught:
                next(lines)
            assert caught.value.kind == "cancelled"
        assert ended.get(timeout=30)
        if end == "scope":
            with pytest.raises(RequestError, match="cancelled"):
                client.ask("GET", "/", seconds=30, scopes=[scope])
        client.close()
        with pytest.raises(RequestError, match="cancelled"):
            client.ask("GET", "/", seconds=30)


def test_many_deadlines_end_each_its_own_request() -> None:
    with listen(hang) as (url, _), closing(HttpClient(url)) as client:
        found: dict[int, Any] = {}

        def ask(number: int) -> None:
            try:
                list(client.stream("/", {}, silence=0.05 * (1 + number % 4)))
            except RequestError as error:
                found[number] = str(error)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        expected = {
            number: f"{client.name}: no whole reply within {0.05 * (1 + number % 4):g} s" for number in range(12)
        }
        assert found == expected


def test_the_address_keeps_its_path() -> None:
    seen: list[bytes] = []

    def talk(peer: Peer) -> None:
        while request := peer.read_request():
            seen.append(request.split(b"\r\n", 1)[0])
            peer.send(whole(b""))

    with listen(talk) as (url, _), closing(HttpClient(url + "/base/")) as client:
        assert client.ask("GET", "/v1/models", seconds=30) is None
        assert client.ask("POST", "", {}, seconds=30) is None
        with closing(HttpClient(url)) as root:
            root.ask("GET", "", seconds=30)
    assert seen == [b"GET /base/v1/models HTTP/1.1", b"POST /base/ HTTP/1.1", b"GET / HTTP/1.1"]


@given(values=st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), max_size=5))
def test_events_are_read_to_their_end(values: list[dict[str, int]]) -> None:
    lines = [line for value in values for line in (b": alive", b"data: " + net.json.dumps(value).encode() + b"\r", b"")]
    assert list(read_events([*lines, b"data: [DONE]", b"data: 5"])) == values
    with pytest.raises(RequestError, match="too early"):
        list(read_events(lines))
    with pytest.raises(RequestError, match="not JSON"):
        list(read_events([b"data: {"]))


@given(st.binary(max_size=2000))
def test_any_body_has_a_short_reason(body: bytes) -> None:
    assert len(read_reason(body)) <= net.SHOWN
