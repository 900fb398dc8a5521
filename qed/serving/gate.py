"""A gate in front of an inference server: connections from other machines need the run's key.

vLLM requires no key on the routes that load weights, so its server listens on loopback only. The gate listens on an
address of the node, reads the head of a connection's first request, and forwards the connection if it carries the key.
Later requests on it come from the same, already authorized client.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from qed.errors import QedError

HEAD_SECONDS = 30.0  # for the head of the first request to arrive
HEAD_BYTES = 2**16
REST_BYTES, REST_SECONDS = 2**20, 2.0  # of a refused request to read, so that its sender gets to read the error
PIECE = 2**16
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Gate:
    """Forwards connections to a server of this machine; it runs in a separate thread until `close`.

    Args:
        host: the address to listen on; the system chooses the port.
        key: the key that the first request of a connection must carry as a bearer token.
        find_port: returns the port of the server; 0 while there is none. It is called in the gate's thread.

    Raises:
        QedError: this machine cannot listen on the address.
    """

    def __init__(self, host: str, key: str, find_port: Callable[[], int]) -> None:
        self.key, self.find_port = key.encode(), find_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gate", daemon=True)
        self._thread.start()
        try:
            listens = asyncio.start_server(self._accept, host, 0, limit=HEAD_BYTES)
            self._server = asyncio.run_coroutine_threadsafe(listens, self._loop).result(HEAD_SECONDS)
        except OSError as error:
            self._stop()
            raise QedError(f"No server can listen on {host}: {error.strerror or error}.") from error
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """End all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(HEAD_SECONDS)
        self._stop()

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
            if not self._has_key(head):
                await _refuse(reader, writer, 401, "The key is missing or wrong: `Authorization: Bearer KEY`.")
                return
            inner = await self._connect()
            if inner is None:
                await _refuse(reader, writer, 502, "The server behind this gate is not running.")
                return
            await _join(head, (reader, writer), inner)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, silent, or does not speak HTTP
        finally:
            writer.close()

    async def _connect(self) -> Ends | None:
        port = self.find_port()
        with suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", port) if port else None
        return None

    def _has_key(self, head: bytes) -> bool:
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            kind, _, given = value.strip().partition(b" ")
            if name.strip().lower() == b"authorization" and kind.lower() == b"bearer":
                return hmac.compare_digest(given.strip(), self.key)
        return False


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int, message: str) -> None:
    """Reply in OpenAI's format, then read the rest of the request, because closing at once could lose the reply."""
    error: dict[str, Any] = {"message": message, "type": "server_error", "param": None, "code": status}
    body = json.dumps({"error": error}).encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    writer.write_eof()
    with suppress(TimeoutError):
        await asyncio.wait_for(_read_rest(reader), REST_SECONDS)


async def _read_rest(reader: asyncio.StreamReader) -> None:
    left = REST_BYTES
    while left > 0 and (piece := await reader.read(PIECE)):
        left -= len(piece)


async def _join(head: bytes, client: Ends, server: Ends) -> None:
    """Forward data in both directions until one side closes, then close the other."""
    server[1].write(head)
    ways = [asyncio.ensure_future(_pass(client[0], server[1])), asyncio.ensure_future(_pass(server[0], client[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if ways[1].done():
            await client[1].drain()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        server[1].close()


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while piece := await source.read(PIECE):
        sink.write(piece)
        await sink.drain()
