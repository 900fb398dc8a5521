"""The gate before a server lets in who has the key, whole and at once, and nobody else."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.errors import QedError
from qed.net.client import HttpClient, RequestError
from qed.serving.gate import HEAD_BYTES, Gate

KEY = "the-key"
LEFT = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answers with what it was sent; /stream sends lines until its client is gone."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        if self.path == "/stream":
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"line\n")
            except OSError:
                self.close_connection = True
                LEFT.set()
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def serve() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    with serve() as port:
        gate = Gate("127.0.0.1", KEY, lambda: port)
        yield gate
        gate.close()


def connect(gate: Gate, monkeypatch: pytest.MonkeyPatch, key: str) -> HttpClient:
    monkeypatch.setenv("GATE_KEY", key)
    return HttpClient(gate.url, "GATE_KEY")


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 2**18), min_size=1, max_size=4))
def test_requests_pass_whole_on_one_connection(gate: Gate, sizes: list[int]) -> None:
    os.environ["GATE_KEY"] = KEY
    client = HttpClient(gate.url, "GATE_KEY")
    for size in sizes:
        assert client.ask("POST", "/", "x" * size, seconds=30) == "x" * size
    client.close()


@pytest.mark.parametrize("key", ["", "the-ke", "the-key2", "other"])
@pytest.mark.parametrize("size", [1, 500_000])
def test_without_the_key_there_is_a_refusal(gate: Gate, monkeypatch: pytest.MonkeyPatch, key: str, size: int) -> None:
    with pytest.raises(RequestError, match="status 401: The key is missing or wrong"):
        connect(gate, monkeypatch, key).ask("POST", "/", "x" * size, seconds=30)


def test_a_client_that_leaves_ends_its_request(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    LEFT.clear()
    lines = connect(gate, monkeypatch, KEY).stream("/stream", {}, silence=30)
    assert next(lines) == b"line"
    lines.close()  # type: ignore[attr-defined]
    assert LEFT.wait(30)


def test_while_the_server_does_not_run_the_gate_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [0]
    gate = Gate("127.0.0.1", KEY, lambda: ports[0])
    client = connect(gate, monkeypatch, KEY)
    for _ in range(2):
        with pytest.raises(RequestError, match="status 502: The server behind this gate is not running"):
            client.ask("POST", "/", 1, seconds=30)
        with socket.socket() as closed:  # a port on which nobody listens
            closed.bind(("127.0.0.1", 0))
            ports[0] = closed.getsockname()[1]
    with serve() as port:
        ports[0] = port
        assert client.ask("POST", "/", 1, seconds=30) == 1
    gate.close()
    with pytest.raises(RequestError):
        client.ask("POST", "/", 1, seconds=30)


@pytest.mark.parametrize(
    "sent", [b"x" * (HEAD_BYTES + 10), b"GET / HTTP/1.1\r\nAuthorization: Bearer\r\n", b"\x16\x03"]
)
def test_what_is_not_http_is_let_go(gate: Gate, sent: bytes) -> None:
    host, port = gate.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert client.recv(1000) == b""


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(QedError, match=r"No server can listen on 192\.0\.2\.1"):
        Gate("192.0.2.1", KEY, lambda: 0)


def test_the_refusal_has_the_form_of_openai(gate: Gate) -> None:
    host, port = gate.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: client.recv(1000), b""))
    assert reply.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == 401
