"""Run the web server of a model: its address, its signals, and its end within seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn

from qed.errors import QedError, UsageError
from qed.guards.signals import EXIT_CODES
from qed.serving.access import is_loopback
from qed.serving.app import build_app
from qed.serving.connections import TimedConnection
from qed.serving.keeper import EngineKeeper
from qed.serving.messages import EngineInfo, ModelSource
from qed.serving.model_text import ModelText
from qed.serving.state import ServerState

IDLE_SECONDS = 75  # between two requests of a connection
FINISH_SECONDS = 3.0  # for running answers after a signal; then they get an error
CLOSE_SECONDS = 6  # for connections to end
MOST_CONNECTIONS = 1_000
FAILED = 1  # the exit code if the engine cannot be started again


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens and who may ask: the address, the port (0 lets the system choose), and a token.

    `name` is that of the model for clients, `others` are names it answers to as well. `body_limit` is in bytes.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    name: str = "model"
    others: tuple[str, ...] = ()
    body_limit: int = 10_000_000

    def __post_init__(self) -> None:
        """Refuse to listen to other machines without a token.

        Raises:
            UsageError: there is none, or a number is out of its range.
        """
        if not is_loopback(self.host) and not self.token:
            raise UsageError(
                f"--host {self.host} lets other machines in, so that it needs a token: set QED_SERVE_TOKEN, or give "
                "--token. Without --host, only this machine may ask."
            )
        if any(not 33 <= ord(sign) <= 126 for sign in self.token):
            raise UsageError("The token must have printable ASCII characters alone, and no spaces: it is a header.")
        if not 0 <= self.port <= 65_535:
            raise UsageError("--port must be a number from 0 to 65535; 0 lets the system choose.")


@dataclass(frozen=True)
class Ready:
    """A server that answers: its address, the name of its model, and its engine."""

    url: str
    name: str
    info: EngineInfo


def run_server(
    source: ModelSource,
    tokenizer: Any,
    options: ServerOptions,
    say: Callable[[str], None],
    on_ready: Callable[[Ready], None],
) -> int:
    """Serve a model until a signal comes, and return the exit code.

    Args:
        source: the model.
        tokenizer: of the model.
        options: where to listen, and who may ask.
        say: prints a line for people.
        on_ready: called once requests are answered.

    Raises:
        QedError: the model cannot be loaded, or the port is in use.
    """
    with open_socket(options) as listener:
        return asyncio.run(_serve(source, tokenizer, options, listener, say, on_ready))


@contextmanager
def open_socket(options: ServerOptions) -> Iterator[socket.socket]:
    """Listen at an address while the block runs.

    Raises:
        UsageError: it is in use, or not of this machine.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"The server cannot listen at {options.host}, port {options.port}: {error.strerror}. Give another --host "
            "or --port; --port 0 takes a free port."
        ) from error
    # Connections inherit it. asyncio sets it only where a socket names its protocol, and without it the body of a reply
    # waits for the acknowledgement of its head, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


async def _serve(
    source: ModelSource,
    tokenizer: Any,
    options: ServerOptions,
    listener: socket.socket,
    say: Callable[[str], None],
    on_ready: Callable[[Ready], None],
) -> int:
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # a client's mistake is its own
    keeper = EngineKeeper(source, say)
    ending = Ending()
    with ending.watch_signals():
        try:
            await ending.run(keeper.start())
            if ending.received is not None:
                return ending.code
            info = keeper.info
            text = ModelText(tokenizer, info.vocabulary or len(tokenizer), info.window)
            state = ServerState(keeper, text, (options.name, *options.others), options.body_limit)
            server = _build_server(state, options.token)
            url = format_url(listener)
            server.on_started = lambda: on_ready(Ready(url, options.name, info))
            watcher = asyncio.create_task(_end_server(server, keeper, ending))
            try:
                await server.serve([listener])
            finally:
                watcher.cancel()
                text.close()
        finally:
            await keeper.stop()
    if keeper.given_up.is_set():
        raise QedError(f"The engine could not be started again. {keeper.reason}")
    return ending.code


class Ending:
    """Waits for the signal that ends the server; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._come = asyncio.Event()

    @property
    def code(self) -> int:
        """The exit code: that of the signal."""
        return EXIT_CODES[self.received] if self.received is not None else 0

    @contextmanager
    def watch_signals(self) -> Iterator[None]:
        """Note signals while the block runs."""
        loop = asyncio.get_running_loop()
        # Under nohup SIGHUP is ignored, and stays so.
        numbers = [one for one in EXIT_CODES if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self._note, signal.Signals(number))
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _note(self, number: signal.Signals) -> None:
        if self.received is not None:
            os._exit(EXIT_CODES[number])  # the engine's process ends with this one
        self.received = number
        self._come.set()

    async def wait(self) -> None:
        """Return once a signal has come."""
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
    """uvicorn's server, which leaves signals to `Ending` and says when it answers."""

    on_started: Callable[[], None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.started and self.on_started is not None:
            self.on_started()


def _build_server(state: ServerState, token: str) -> Server:
    return Server(
        uvicorn.Config(
            build_app(state, token),
            loop="asyncio",
            http=TimedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
    )


async def _end_server(server: Server, keeper: EngineKeeper, ending: Ending) -> None:
    """End the server once a signal has come, or the engine cannot be started any more."""
    waits = [asyncio.create_task(ending.wait()), asyncio.create_task(keeper.given_up.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await asyncio.sleep(FINISH_SECONDS)
        # What still runs gets an error as its reply, and the connections end by themselves.
        await keeper.stop()
    finally:
        for one in waits:
            one.cancel()


def format_url(listener: socket.socket) -> str:
    """Return the address of a socket for clients of this machine; `everywhere` includes loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
