"""Read request bodies within a size limit and a deadline, and notice when a client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from qed.serving.answering import cancel_all
from qed.serving.fields import Fields
from qed.serving.refusals import Refused

BODY_SECONDS = 60.0  # for a complete body to arrive
DRAINED, DRAIN_SECONDS = 8, 5.0  # of a too long body, read and drop up to 8 times the limit, for up to 5 s
PARSED_INLINE = 1 << 18  # bytes of JSON to parse in the event loop; longer texts are parsed in a thread
WRITTEN_INLINE = 2_000  # numbers in a reply to write in the event loop
T = TypeVar("T")


async def read_fields(request: Request, limit: int) -> Fields:
    """Return the JSON object of a request's body; an empty body is an empty object.

    Raises:
        Refused: it is longer than `limit` bytes, arrives too slowly, or is not a JSON object.
    """
    body = await read_body(request, limit)
    parse = asyncio.to_thread(parse_json, body) if len(body) > PARSED_INLINE else None
    return Fields(await parse if parse is not None else parse_json(body))


async def read_body(request: Request, limit: int) -> bytes:
    """Return a request's body.

    Raises:
        Refused: see `read_fields`.
        ClientDisconnect: the client has disconnected.
    """
    body = bytearray()
    parts = request.stream()
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit:
        await _refuse_size(parts, limit)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in parts:
                body += part
                if len(body) > limit:
                    break
    except TimeoutError:
        message = f"The body did not arrive within {BODY_SECONDS:g} s."
        raise Refused(408, message, headers={"connection": "close"}) from None
    if len(body) > limit:
        await _refuse_size(parts, limit)
    return bytes(body)


async def _refuse_size(parts: AsyncIterator[bytes], limit: int) -> NoReturn:
    """Refuse a body after reading most of it, because many clients send a complete body before they read an error."""
    left = DRAINED * limit
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for part in parts:
                left -= len(part)
                if left < 0:
                    break
    raise Refused(
        413,
        f"The body is larger than {limit / 1e6:g} MB, the limit of this server (qed serve --max-body-mb).",
        headers={"connection": "close"},
    )


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON text; an empty text is an empty object.

    Raises:
        Refused: it is invalid, too deeply nested, or has NaN or infinite numbers.
    """

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON number")

    if not body.strip():
        return {}
    try:
        return json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise Refused(400, f"The body is not valid JSON: {reason}.") from error


async def build_json(write: Callable[[], Any], size: int) -> JSONResponse:
    """Build a reply; build a large one in a thread, so that other requests do not wait for it.

    Args:
        write: returns the content.
        size: the approximate number of numbers in it.
    """
    if size <= WRITTEN_INLINE:
        return JSONResponse(write())
    return await asyncio.to_thread(lambda: JSONResponse(write()))


async def run_for_client(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work for a request whose body has been read; cancel it if the client disconnects.

    Raises:
        ClientDisconnect: the client has disconnected.
    """
    worker, watcher = asyncio.create_task(work), asyncio.create_task(_wait_until_gone(request))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientDisconnect
    finally:
        await cancel_all((worker, watcher))


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class ClosedStream(StreamingResponse):
    """A streamed reply whose generator is closed as soon as the client disconnects, not by the garbage collector.

    Args:
        pieces: the pieces of the reply.
        media_type: the media type of the reply.
    """

    def __init__(self, pieces: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(pieces, media_type=media_type, headers={"cache-control": "no-cache"})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces."""
        try:
            with suppress(ClientDisconnect):
                await super().__call__(scope, receive, send)
        finally:
            await self._pieces.aclose()
