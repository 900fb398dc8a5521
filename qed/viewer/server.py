"""Run the viewer's web server until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from qed.errors import UsageError
from qed.guards.signals import EXIT_CODES
from qed.net.access import require_safe_address
from qed.net.listening import format_url, open_socket
from qed.net.web_server import Ending, build_server
from qed.viewer.app import build_app
from qed.viewer.guard import EVERYWHERE, Access, list_hosts
from qed.viewer.library import Library

PORT = 7860
TRIED = 100  # ports after the default one that are tried
TOKEN = "QED_VIEW_TOKEN"  # environment variable
IDLE_SECONDS = 75  # between two requests of a connection
CLOSE_SECONDS = 1  # for connections to end
MOST_CONNECTIONS = 200


@dataclass(frozen=True)
class ViewerOptions:
    """Where the viewer listens, and who may use it.

    `port` is None for the default port or the next free one; `hosts` are further allowed Host headers.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    token: str = ""
    hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse to serve other machines without a token.

        Raises:
            UsageError: there is no token, or a number is out of range.
        """
        require_safe_address(self.host, self.port or 0, self.token, TOKEN)


def run_viewer(library: Library, options: ViewerOptions, on_ready: Callable[[str], None]) -> int:
    """Serve runs until a signal arrives, and return the exit code.

    Args:
        library: the runs.
        options: where to listen, and who may use the viewer.
        on_ready: called with the address once requests are answered.

    Raises:
        UsageError: the port is in use.
    """
    with open_viewer_socket(options) as listener:
        return asyncio.run(_serve(library, options, listener, on_ready))


@contextmanager
def open_viewer_socket(options: ViewerOptions) -> Iterator[socket.socket]:
    """Listen on the requested port, or without one on the first free port from the default one on."""
    with ExitStack() as stack:
        yield _listen(stack, options)


def _listen(stack: ExitStack, options: ViewerOptions) -> socket.socket:
    for port in range(PORT, PORT + TRIED) if options.port is None else ():
        try:
            return stack.enter_context(open_socket(options.host, port))
        except UsageError:
            continue
    return stack.enter_context(open_socket(options.host, options.port or 0))


async def _serve(
    library: Library, options: ViewerOptions, listener: socket.socket, on_ready: Callable[[str], None]
) -> int:
    # Clients' mistakes and requests interrupted by the shutdown are not reported; the guard reports bugs.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    port = listener.getsockname()[1]
    hosts = list_hosts(options.host, port, options.hosts)
    access = Access(hosts, options.token, port, everywhere=options.host in EVERYWHERE)
    server = build_server(build_app(library, access), MOST_CONNECTIONS, IDLE_SECONDS, CLOSE_SECONDS)
    server.on_started = lambda: on_ready(format_url(listener))
    ending = Ending(EXIT_CODES)

    async def end() -> None:
        await ending.wait()
        server.should_exit = server.force_exit = True

    with ending.watch_signals():
        watcher = asyncio.create_task(end())
        try:
            await server.serve([listener])
        finally:
            watcher.cancel()
    return ending.code
