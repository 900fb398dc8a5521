"""Run the web server of a model: its address, its signals, and its shutdown within seconds."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qed.errors import QedError
from qed.guards.signals import EXIT_CODES
from qed.net.listening import format_url, open_socket
from qed.net.web_server import Ending, Server, build_server
from qed.serving.app import build_app
from qed.serving.engine_start import EngineProcess
from qed.serving.keeper import EngineKeeper
from qed.serving.messages import EngineInfo, ModelSource
from qed.serving.model_text import ModelText
from qed.serving.options import ServerOptions
from qed.serving.state import ServerState

IDLE_SECONDS = 75  # between two requests of a connection
FINISH_SECONDS = 3.0  # for running answers to finish after a signal, before they get an error
CLOSE_SECONDS = 6  # for connections to end
MOST_CONNECTIONS = 1_000


@dataclass(frozen=True)
class Ready:
    """A server that is ready: its address, the name of its model, and its engine."""

    url: str
    name: str
    info: EngineInfo


def run_server(
    source: ModelSource,
    tokenizer: Any,
    options: ServerOptions,
    say: Callable[[str], None],
    on_ready: Callable[[Ready], None],
    process: EngineProcess,
) -> int:
    """Serve a model until a signal arrives, and return the exit code.

    Args:
        source: the model.
        tokenizer: the tokenizer of the model.
        options: where to listen, and who may connect.
        say: prints a line for people.
        on_ready: called once requests are answered.
        process: the process of the first engine, which waits for its model.

    Raises:
        QedError: the model cannot be loaded, or the port is in use.
    """
    with open_socket(options.host, options.port) as listener:
        return asyncio.run(_serve(source, tokenizer, options, listener, say, on_ready, process))


async def _serve(
    source: ModelSource,
    tokenizer: Any,
    options: ServerOptions,
    listener: socket.socket,
    say: Callable[[str], None],
    on_ready: Callable[[Ready], None],
    process: EngineProcess,
) -> int:
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # mistakes of clients do not belong in the log
    keeper = EngineKeeper(source, say)
    ending = Ending(EXIT_CODES)
    with ending.watch_signals():
        try:
            await ending.run(keeper.start(process))
            if ending.received is not None:
                return ending.code
            info = keeper.info
            text = ModelText(tokenizer, info.vocabulary, info.window)
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
        raise QedError(f"The engine could not be restarted. {keeper.reason}")
    return ending.code


def _build_server(state: ServerState, token: str) -> Server:
    return build_server(build_app(state, token), MOST_CONNECTIONS, IDLE_SECONDS, CLOSE_SECONDS)


async def _end_server(server: Server, keeper: EngineKeeper, ending: Ending) -> None:
    """Stop the server once a signal arrives, or the engine cannot be restarted any more."""
    waits = [asyncio.create_task(ending.wait()), asyncio.create_task(keeper.given_up.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await asyncio.sleep(FINISH_SECONDS)
        # Running requests get an error reply, after which their connections close.
        await keeper.stop()
    finally:
        for one in waits:
            one.cancel()
