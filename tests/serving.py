"""A small HTTP server on this machine whose replies a test decides."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]  # a status, and JSON or bytes


@contextmanager
def serve(answer: Callable[[str, Any, dict[str, str]], Reply | None]) -> Iterator[str]:
    """Serve in a thread while the block runs, and yield the address.

    `answer` gets the path, the JSON of the request and its headers; None sends nothing and keeps the connection open.
    """
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = answer(self.path, content, dict(self.headers))
            if reply is None:
                ended.wait(30)
                return
            status, body = reply
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (("Content-Length", str(len(data))), *HEADERS.get(status, ())):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a test's own mistake, but not that a client has left, also in the middle of its request."""
        if not isinstance(sys.exc_info()[1], ConnectionError | json.JSONDecodeError):
            super().handle_error(request, client_address)


HEADERS = {302: [("Location", "http://127.0.0.1:9/elsewhere")], 429: [("Retry-After", "0")]}


def chat_reply(text: str | None) -> dict[str, Any]:
    """The reply of an OpenAI-compatible chat endpoint."""
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}
