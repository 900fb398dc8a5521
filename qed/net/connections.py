"""uvicorn's HTTP connections with deadlines: for the head of a request, and for clients that stop reading."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 15.0  # for the head of a request to arrive, from opening the connection or its first byte
READ_SECONDS = 60.0  # for a client to read some of the pending data


class TimedConnection(H11Protocol):
    """A connection that is dropped if its client sends no complete request head, or reads nothing, for too long.

    uvicorn closes a connection that is idle between two requests, but not one whose first request never arrives, and
    it waits forever for a client that does not read.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a request."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines."""
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            if self._head is not None:
                self._head.cancel()
            self._head = None
        elif self._head is None:
            self._expect_head()

    def pause_writing(self) -> None:
        """Start waiting for a client that does not read fast enough."""
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        """Stop waiting for the client."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
        self._unread = None

    def on_response_complete(self) -> None:
        """Wait for the client to read the end of the reply, if the connection closes after it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reader()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if its client has not read the last reply."""
        super().timeout_keep_alive_handler()
        self._expect_reader()

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _expect_reader(self) -> None:
        if self._unread is None:
            self._watch_reader()

    def _watch_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(READ_SECONDS, self._check_reader, left)

    def _check_reader(self, before: int) -> None:
        """Drop a client that has read nothing since; a slow client may continue."""
        if self.transport.get_write_buffer_size() < before:
            self._watch_reader()
        else:
            self.transport.abort()
