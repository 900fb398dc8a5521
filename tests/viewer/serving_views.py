"""Serve runs to a test from a thread, and ask for anything: paths, methods and headers as they are."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import zstandard

from qed.net.listening import format_url, open_socket
from qed.net.web_server import build_server
from qed.viewer.app import build_app
from qed.viewer.guard import EVERYWHERE, Access, list_hosts
from qed.viewer.library import Library

SECONDS = 30.0


@dataclass(frozen=True)
class Reply:
    """The reply to a request."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        return str(self.json["error"])


def fetch(url: str, path: str, method: str = "GET", **headers: str) -> Reply:
    """The reply to a request; `_` in the name of a header is `-`."""
    place = urlsplit(url)
    with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=SECONDS)) as connection:
        connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        reply = connection.getresponse()
        content = reply.read()
    return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, content)


def ask_view(url: str, name: str, /, **params: Any) -> Reply:
    """The reply of an endpoint."""
    return fetch(url, f"/api/{name}?{urlencode(params, errors='surrogatepass')}")


@contextmanager
def serve_runs(
    places: Sequence[Path], cache: Path, token: str = "", others: Sequence[str] = (), host: str = "127.0.0.1"
) -> Iterator[str]:
    """The address of a viewer of runs, until the block ends."""
    with open_socket(host, 0) as listener:
        url, ready = format_url(listener), threading.Event()
        port = listener.getsockname()[1]
        access = Access(list_hosts(host, port, others), token, port, everywhere=host in EVERYWHERE)
        app = build_app(Library(places, cache), access)
        server = build_server(app, 100, 5, 1)
        server.on_started = ready.set
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            assert ready.wait(SECONDS)
            yield url
        finally:
            server.should_exit = server.force_exit = True
            thread.join(SECONDS)


def make_run(folder: Path, **files: str) -> Path:
    """A small run that has ended; `files` are written over its own, compressed where their name says so."""
    rows = [{"step": step, "phase": "grpo", "reward/mean": step / 10, "time/step": 1.0} for step in range(1, 4)]
    settings = "method: grpo\nlearner: {steps: 3, epochs: 0.0}\nmodel: {name: tiny}\nrun: {seed: 7}\n"
    content = {
        "settings.yaml": settings + "data: {tasks: [arithmetic]}\n",
        "metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "events.jsonl": json.dumps({"event": "finished", "time": 1_700_000_000.0, "step": 3}) + "\n",
        "eval/step_000000/summary.json": json.dumps({"arithmetic": {"greedy": build_figures(0.25)}}),
        "logs/attempt_1/main.log": "started\n",
    }
    for name, text in {**content, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        written = text.encode()
        (folder / name).write_bytes(zstandard.compress(written) if name.endswith(".zst") else written)
    return folder


def build_figures(accuracy: float) -> dict[str, Any]:
    """The figures of a decoding, as in a summary.json."""
    return {"n": 4, "accuracy": accuracy, "ci_lo": 0.05, "ci_hi": 0.7}
