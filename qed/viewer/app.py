"""The web application of the viewer: the page, its files, and the endpoints that read runs."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import qed
from qed.errors import QedError
from qed.guards.redaction import redact, strip_control
from qed.viewer import (
    answers,
    cards,
    comparing,
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
from qed.viewer.assets import build_style, read_asset
from qed.viewer.guard import Access, Guard
from qed.viewer.library import Library
from qed.viewer.params import Params, Refused

Result = TypeVar("Result")
Endpoint = Callable[[Library, Params], dict[str, Any]]
JSON = "application/json"
AT_ONCE = 8  # requests that read runs at the same time; further ones wait


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
    "compare": comparing.compare_runs,
    "suspects": suspects.find_suspects,
}


def build_app(library: Library, access: Access) -> Guard:
    """Build the application.

    Args:
        library: the runs.
        access: who may ask.
    """
    app = Starlette(
        routes=[
            Route("/", show_page),
            Route("/style.css", show_style),
            Route("/static/{name:path}", show_asset),
            Route("/api/{name}", answer_request),
        ],
        exception_handlers={QedError: _reply_to_error, HTTPException: _reply_to_routing},
    )
    app.router.redirect_slashes = False
    app.state.library = library
    app.state.slots = asyncio.Semaphore(AT_ONCE)
    return Guard(app, access)


async def show_page(request: Request) -> Response:
    """`GET /`: the page, which asks for everything else."""
    content, kind = read_asset("index.html")
    return Response(content, media_type=kind)


async def show_style(request: Request) -> Response:
    """`GET /style.css`."""
    return Response(build_style(), media_type="text/css; charset=utf-8")


async def show_asset(request: Request) -> Response:
    """`GET /static/PATH`."""
    content, kind = read_asset(request.path_params["name"])
    return Response(content, media_type=kind)


async def answer_request(request: Request) -> Response:
    """`GET /api/NAME`: what an endpoint replies, as JSON."""
    name = request.path_params["name"]
    endpoint = ENDPOINTS.get(name)
    if endpoint is None:
        raise Refused(404, f"There is no endpoint {name[:80]}.")
    params = Params({key: request.query_params.getlist(key) for key in request.query_params})
    library = request.app.state.library
    async with request.app.state.slots:
        status, content = await call_in_thread(lambda: compute_reply(name, endpoint, library, params))
    return Response(content, status, media_type=JSON)


def compute_reply(name: str, endpoint: Endpoint, library: Library, params: Params) -> tuple[int, bytes]:
    """Return the status and the JSON that an endpoint replies; an error that is a bug is a line of stderr and 500."""
    try:
        return 200, encode_reply(endpoint(library, params))
    except Refused as error:
        return error.status, encode_reply({"error": str(error)})
    except QedError as error:
        return 422, encode_reply({"error": str(error)})
    except FileNotFoundError:
        return 410, encode_reply({"error": "A file of the run is gone: it has been deleted or moved."})
    except Exception as error:  # noqa: BLE001 -- the server lives on, whatever a folder holds
        report_bug(f"/api/{name}", error)
        return 500, encode_reply({"error": f"{type(error).__name__}; the viewer's terminal says more."})


def report_bug(place: str, error: Exception) -> None:
    """Write a line about an error that is a bug, or an unusual file, to stderr."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "unknown place"
    text = " ".join(str(error).split())[:500]
    sys.stderr.write(strip_control(redact(f"error: {place}: {type(error).__name__}: {text} ({where})")) + "\n")


def encode_reply(reply: dict[str, Any]) -> bytes:
    """Encode a reply as JSON; numbers that JSON does not have become null."""
    try:
        text = json.dumps(reply, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_drop_non_finite(reply), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _drop_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _drop_non_finite(inner) for key, inner in value.items()}
    return [_drop_non_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


async def call_in_thread(function: Callable[[], Result]) -> Result:
    """Call a function in a thread of its own, which does not keep the process from ending."""
    loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def finish(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 -- raised where it is awaited
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=work, name="viewer", daemon=True).start()
    value: Result = await future
    return value


async def _reply_to_error(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else 422
    return Response(encode_reply({"error": str(error)}), status, media_type=JSON)


async def _reply_to_routing(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return Response(encode_reply({"error": "There is no such page."}), status, media_type=JSON)
