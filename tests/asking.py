"""Ask an HTTP server with the standard library: whole replies, and the events of a stream."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

SECONDS = 60.0


def connect(url: str) -> http.client.HTTPConnection:
    """A connection to the server at an address."""
    place = urlsplit(url)
    return http.client.HTTPConnection(place.hostname or "", place.port, timeout=SECONDS)


def ask(url: str, path: str, body: Any = None, method: str = "", **headers: str) -> tuple[int, Any]:
    """The status and the content of a reply, JSON where it is some; a body is sent by POST, bytes as they are."""
    with closing(connect(url)) as connection:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, content, named)
        reply = connection.getresponse()
        text = reply.read()
    return reply.status, json.loads(text) if "json" in (reply.getheader("content-type") or "") else text.decode()


def read_events(url: str, path: str, body: dict[str, Any], **headers: str) -> Iterator[Any]:
    """The events of a stream as they come; the last is not shown, and must be `[DONE]`."""
    with closing(connect(url)) as connection:
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode(), headers)
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        assert reply.getheader("content-type") == "text/event-stream; charset=utf-8"
        last = ""
        for line in reply:
            if line.strip():
                kind, _, last = line.decode().strip().partition(": ")
                assert kind == "data"
                if last != "[DONE]":
                    yield json.loads(last)
        assert last == "[DONE]"
