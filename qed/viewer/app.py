"""The web application of the viewer: the page, its files, and the endpoints that read runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import qed
from qed.errors import QedError
from qed.viewer import (
    answers,
    cards,
    comparing,
    comparing_arms,
    curves,
    details,
    evaluations,
    explaining,
    logs,
    problems,
    searching,
    steps,
    suspects,
)
from qed.viewer.assets import build_page, build_style, read_asset
from qed.viewer.guard import Access, Guard
from qed.viewer.library import Library
from qed.viewer.live import RunTail, stream_events
from qed.viewer.params import Params, Refused
from qed.viewer.replies import encode_reply, report_bug
from qed.viewer.threads import call_in_thread

Endpoint = Callable[[Library, Params], dict[str, Any]]
JSON = "application/json"
EVENTS = "text/event-stream"
AT_ONCE = 8  # concurrent requests that read runs; further ones wait
MOST_LISTENERS = 24  # connections that follow live runs; a browser has at most 6 connections to a server


def describe_viewer(library: Library, params: Params) -> dict[str, Any]:
    """Answer `about`: the version, and the number of runs."""
    return {"version": qed.__version__, "static": False, "runs": len(library.runs())}


ENDPOINTS: dict[str, Endpoint] = {
    "about": describe_viewer,
    "runs": cards.list_cards,
    "run": details.describe_run,
    "metrics": curves.read_curves,
    "log": logs.read_log,
    "step": steps.read_step,
    "group": answers.read_group,
    "answer": answers.read_answer,
    "explain": explaining.explain_answer,
    "search": searching.search_answers,
    "problems": problems.list_problems,
    "problem": problems.describe_problem,
    "evaluations": evaluations.list_evaluations,
    "evaluation": evaluations.describe_evaluation,
    "arms": comparing_arms.compare_seeds,
    "compare": comparing.compare_runs,
    "suspects": suspects.find_suspects,
}


def build_app(library: Library, access: Access) -> Guard:
    """Build the application.

    Args:
        library: the runs.
        access: who may use the viewer.
    """
    app = Starlette(
        routes=[
            Route("/", show_page),
            Route("/style.css", show_style),
            Route("/static/{name:path}", show_asset),
            Route("/api/live", stream_run),
            Route("/api/{name}", answer_request),
        ],
        exception_handlers={QedError: _reply_to_error, HTTPException: _reply_to_routing},
    )
    app.router.redirect_slashes = False
    app.state.library = library
    app.state.slots = asyncio.Semaphore(AT_ONCE)
    app.state.listeners = 0
    return Guard(app, access)


async def show_page(request: Request) -> Response:
    """`GET /`: the page, which requests everything else."""
    return Response(build_page(), media_type="text/html; charset=utf-8")


async def show_style(request: Request) -> Response:
    """`GET /style.css`."""
    return Response(build_style(), media_type="text/css; charset=utf-8")


async def show_asset(request: Request) -> Response:
    """`GET /static/PATH`."""
    content, kind = read_asset(request.path_params["name"])
    return Response(content, media_type=kind)


async def answer_request(request: Request) -> Response:
    """`GET /api/NAME`: the reply of an endpoint, as JSON."""
    name = request.path_params["name"]
    endpoint = ENDPOINTS.get(name)
    if endpoint is None:
        raise Refused(404, f"There is no endpoint {name[:80]}.")
    params, library = _read_params(request), request.app.state.library
    async with request.app.state.slots:
        status, content = await call_in_thread(lambda: compute_reply(name, endpoint, library, params))
    return Response(content, status, media_type=JSON)


async def stream_run(request: Request) -> Response:
    """`GET /api/live`: server-sent events of a run, as long as it is live and the client is connected."""
    state, params = request.app.state, _read_params(request)
    if state.listeners >= MOST_LISTENERS:
        raise Refused(503, f"{MOST_LISTENERS} pages already follow live runs. Close one of them.")
    resume = request.headers.get("last-event-id", "")
    tail = await call_in_thread(lambda: RunTail(state.library, params, resume))
    if request.method == "HEAD":
        return Response(media_type=EVENTS)

    async def stream() -> AsyncIterator[bytes]:
        state.listeners += 1
        try:
            async for message in stream_events(tail):
                yield message
        finally:
            state.listeners -= 1

    return StreamingResponse(stream(), media_type=EVENTS)


def _read_params(request: Request) -> Params:
    return Params({name: request.query_params.getlist(name) for name in request.query_params})


def compute_reply(name: str, endpoint: Endpoint, library: Library, params: Params) -> tuple[int, bytes]:
    """Return the status and the JSON reply of an endpoint; a bug is reported as a line on stderr and status 500."""
    try:
        return 200, encode_reply(endpoint(library, params))
    except Refused as error:
        return error.status, encode_reply({"error": str(error)})
    except QedError as error:
        return 422, encode_reply({"error": str(error)})
    except FileNotFoundError:
        return 410, encode_reply({"error": "A file of the run no longer exists: it was deleted or moved."})
    except Exception as error:  # noqa: BLE001 -- the server keeps running, whatever a folder contains
        report_bug(f"/api/{name}", error)
        return 500, encode_reply({"error": f"{type(error).__name__}; see the viewer's terminal for details."})


async def _reply_to_error(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else 422
    return Response(encode_reply({"error": str(error)}), status, media_type=JSON)


async def _reply_to_routing(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return Response(encode_reply({"error": "There is no such page."}), status, media_type=JSON)
