"""The web application of a server: its routes, the errors of all of them, and `/health`, `/version` and `/metrics`."""

from __future__ import annotations

import logging
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import qed
from qed.errors import QedError
from qed.serving import routes_openai, routes_training
from qed.serving.access import Access
from qed.serving.keeper import EngineKeeper
from qed.serving.metrics import CONTENT_TYPE
from qed.serving.refusals import Refused
from qed.serving.routes_training import read_seconds
from qed.serving.state import ServerState, find_state, refuse_error

HEALTH_SECONDS = 30.0  # for the engine's loop to answer, which it does between two steps; loading weights is one
LOGGER = logging.getLogger("qed.serving")


def build_app(state: ServerState, token: str = "") -> Starlette:
    """Build the application.

    Args:
        state: the state that the routes share.
        token: the token that requests must carry; empty for none.
    """
    app = Starlette(
        routes=[
            Route("/health", check_health),
            Route("/version", show_version),
            Route("/metrics", show_metrics),
            *routes_openai.ROUTES,
            *routes_training.ROUTES,
        ],
        middleware=[Middleware(ReplyCounter, state=state), Middleware(Access, token=token)],
        exception_handlers={
            QedError: _reply_to_error,
            HTTPException: _reply_to_routing,
            ClientDisconnect: _reply_to_nobody,
        },
    )
    app.state.server = state
    return app


class ReplyCounter:
    """Middleware that counts replies by status, and replies to unexpected errors.

    Args:
        app: the application.
        state: the state of the server.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app, self._replies = app, state.metrics.replies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        begun = False

        async def count(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._replies[message["status"]] += 1
            await send(message)

        try:
            await self.app(scope, receive, count)
        except Exception as error:
            LOGGER.exception("A request to %s failed.", scope.get("path"))
            if begun:
                raise
            await refuse_error(error).build_reply()(scope, receive, count)


async def _reply_to_error(request: Request, error: Exception) -> Response:
    return refuse_error(error).build_reply()


async def _reply_to_routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return Refused(404, f"There is no {request.url.path[:200]} here.").build_reply()
    message = f"{request.method} {request.url.path[:200]} is not allowed."
    return Refused(error.status_code, message, headers=error.headers).build_reply()


async def _reply_to_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # never sent: the client is gone


async def check_health(request: Request) -> Response:
    """`GET /health`: 200 once the engine's loop has answered, else 503; `?timeout=S` is the deadline."""
    state = find_state(request)
    keeper = state.keeper
    seconds = read_seconds(request, HEALTH_SECONDS)
    try:
        await keeper.check(seconds)
    except QedError as error:
        return JSONResponse({**_describe_state(keeper), "reason": str(error)}, 503)
    return JSONResponse(_describe_state(keeper))


def _describe_state(keeper: EngineKeeper) -> dict[str, Any]:
    return {"status": keeper.state, "weight_version": keeper.version, "restarts": keeper.restarts}


async def show_version(request: Request) -> Response:
    """`GET /version`."""
    return JSONResponse({"version": qed.__version__})


async def show_metrics(request: Request) -> Response:
    """`GET /metrics`: text for Prometheus."""
    state = find_state(request)
    state.metrics.restarts = state.keeper.restarts
    try:
        stats = await state.keeper.require().read_stats()
    except QedError:
        stats = None
    return PlainTextResponse(state.metrics.format(state.names[0], stats), media_type=CONTENT_TYPE)
