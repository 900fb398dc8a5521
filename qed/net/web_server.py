"""A web server in the foreground: uvicorn with deadlines, and the signals that stop it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from qed.net.connections import TimedConnection


class Ending:
    """Waits for the signal that stops the server; a second one ends the process at once.

    Args:
        codes: the signals and their exit codes.
    """

    def __init__(self, codes: Mapping[signal.Signals, int]) -> None:
        self.codes = codes
        self.received: signal.Signals | None = None
        self._come = asyncio.Event()

    @property
    def code(self) -> int:
        """The exit code: that of the signal."""
        return self.codes[self.received] if self.received is not None else 0

    @contextmanager
    def watch_signals(self) -> Iterator[None]:
        """Handle signals while the block runs."""
        loop = asyncio.get_running_loop()
        # Under nohup SIGHUP is ignored, and stays ignored.
        numbers = [one for one in self.codes if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self._note, signal.Signals(number))
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _note(self, number: signal.Signals) -> None:
        if self.received is not None:
            os._exit(self.codes[number])  # its child processes end with it
        self.received = number
        self._come.set()

    async def wait(self) -> None:
        """Return once a signal has been received."""
        await self._come.wait()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine; a signal cancels it."""
        task, signalled = asyncio.create_task(work), asyncio.create_task(self.wait())
        await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        else:
            task.result()


class Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to `Ending` and reports when it is ready."""

    on_started: Callable[[], None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        await super().startup(sockets)
        if self.started and self.on_started is not None:
            self.on_started()


def build_server(app: ASGIApp, most_connections: int, idle_seconds: int, close_seconds: int) -> Server:
    """Build the server of an application.

    Args:
        app: the application.
        most_connections: the most simultaneous connections; further ones get status 503.
        idle_seconds: the most seconds between two requests of a connection.
        close_seconds: the most seconds for running answers once the server is stopping.
    """
    return Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=TimedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=most_connections,
            timeout_keep_alive=idle_seconds,
            timeout_graceful_shutdown=close_seconds,
        )
    )
