"""Routes for training: batches bitwise equal to the learner's process, log-probs, pauses, weights and sleep."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from qed.config.settings import can_sample_at, is_temperature
from qed.sampling.base import PromptBatch, Sampling
from qed.serving.answering import cancel_all
from qed.serving.bodies import ClosedStream, build_json, read_fields, run_for_client
from qed.serving.fields import Fields, require_ids
from qed.serving.messages import Batch, EngineInfo, PauseMode, Scoring
from qed.serving.refusals import Refused
from qed.serving.state import find_state, refuse_error
from qed.types import Completion

LARGER = 16  # the body limit for a batch of a training step, as a multiple of that of other requests
LINE_SECONDS = 1.0  # between two lines about the steps of a batch
PAUSE_SECONDS = 60.0  # for running answers to end, unless the request gives another value
INT64 = 1 << 63


async def sample_batch(request: Request) -> Response:
    """`POST /qed/batch`: JSON lines with the steps so far, and a last line with the completions or an error."""
    state = find_state(request)
    fields = await read_fields(request, LARGER * state.body_limit)
    batch = await asyncio.to_thread(_read_batch, fields, state.info.vocabulary)
    return ClosedStream(_write_batch(state.keeper.require(), batch), "application/x-ndjson")


def _read_batch(fields: Fields, vocabulary: int) -> Batch:
    """Read batches that are completed together; the sampler itself checks whether they can be sampled.

    Raises:
        Refused: the parts of a batch do not match.
    """
    parts = fields.find("batches")
    if not isinstance(parts, list) or not parts or not all(isinstance(each, dict) for each in parts):
        raise fields.refuse("batches", "must be a list of objects, at least one")
    return Batch([_read_part(Fields(each), vocabulary) for each in parts], fields.read_text("session") or "")


def _read_part(fields: Fields, vocabulary: int) -> PromptBatch:
    prompts, seeds = fields.read_rows("prompts"), fields.read_rows("seeds")
    require_ids(prompts, vocabulary, "prompts")
    if len(seeds) != len(prompts) or not all(prompts):
        raise fields.refuse("seeds", "must have a list for each of the prompts, none of which may be empty")
    if any(row and not -INT64 <= min(row) <= max(row) < INT64 for row in seeds):
        raise fields.refuse("seeds", "must be 64-bit numbers")
    lengths = fields.read_ids("prefix_lengths")
    if lengths and (len(lengths) != len(prompts) or min(lengths) < 0):
        raise fields.refuse("prefix_lengths", "must have a number for each of the prompts, or be empty")
    sampling = _read_sampling(fields)
    if any(row and given >= sampling.max_tokens for row, given in zip(seeds, lengths, strict=False)):
        raise fields.refuse("prefix_lengths", "must be below max_tokens, which counts the given tokens too")
    return PromptBatch(prompts, seeds, sampling, lengths)


def _read_sampling(fields: Fields) -> Sampling:
    if not isinstance(fields.find("sampling"), dict):
        raise fields.refuse("sampling", "must be an object with the sampling parameters")
    inner = Fields(fields.find("sampling"))
    if unknown := set(inner.body) - {field.name for field in dataclasses.fields(Sampling)}:
        raise Refused(400, f"sampling has no field {min(unknown)}: client and server differ in version.", "sampling")
    temperature = inner.read_number("temperature", 1.0, is_temperature, "that is 0, or at least 1e-6")
    most = inner.read_integer("max_tokens", 1, 1, INT64 - 1)
    return Sampling(
        temperature,
        most,
        stop=inner.read_texts("stop", 1_000, 10_000),
        top_p=inner.read_number("top_p", 1.0, lambda value: 0 < value <= 1, "above 0 and at most 1"),
        top_k=inner.read_integer("top_k", 0, 0, INT64 - 1),
        min_p=inner.read_number("min_p", 0.0, lambda value: 0 <= value < 1, "of at least 0 and below 1"),
        min_tokens=inner.read_integer("min_tokens", 0, 0, most),
        record=inner.read_switch("record"),
    )


async def _write_batch(engine: Any, batch: Batch) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a batch; closing the generator aborts it."""
    done = 0

    def note(steps: int) -> None:
        nonlocal done
        done = steps

    work = asyncio.create_task(engine.batch(batch, note))
    shown = 0
    try:
        while not work.done():
            await asyncio.wait((work,), timeout=LINE_SECONDS)
            # A line shows that the engine is alive; without one the client would time out.
            if not work.done() and done > shown:
                shown = done
                yield json.dumps({"steps": shown}).encode() + b"\n"
        try:
            completions = work.result()
        except Exception as error:  # noqa: BLE001 -- the status has been sent, so the error is a line
            body = refuse_error(error).build_body()["error"]
            yield json.dumps({"error": {**body, "type": type(error).__name__}}).encode() + b"\n"
            return
        for part in _write_completions(completions, engine.version):
            yield part
    finally:
        await cancel_all((work,))


def _write_completions(completions: list[list[Completion]], version: int) -> Iterator[bytes]:
    """Yield the last line of a batch in one part per prompt, so that other requests do not wait for all of it."""
    versions = {one.version for row in completions for one in row if one.version is not None}
    yield f'{{"version": {max(versions, default=version)}, "completions": ['.encode()
    for number, row in enumerate(completions):
        yield (", " if number else "").encode() + json.dumps([_describe_completion(one) for one in row]).encode()
    yield b"]}\n"


def _describe_completion(completion: Completion) -> dict[str, Any]:
    support = completion.support
    return {
        "tokens": list(completion.tokens),
        "logps": list(completion.logps),
        "stop_reason": completion.stop_reason,
        "support": None if support is None else {"counts": list(support.counts), "ids": list(support.ids)},
    }


async def score(request: Request) -> JSONResponse:
    """`POST /qed/score`: the log-probs of outputs after prompts."""
    state = find_state(request)
    fields = await read_fields(request, LARGER * state.body_limit)
    scoring = await asyncio.to_thread(_read_scoring, fields, state.info)
    engine = state.keeper.require()
    scored = await run_for_client(request, engine.score(scoring)) if scoring.prompts else []
    version = max((one.version for one in scored), default=state.keeper.version)
    numbers = sum(len(one.logps) for one in scored)
    return await build_json(lambda: {"version": version, "logps": [list(one.logps) for one in scored]}, numbers)


def _read_scoring(fields: Fields, info: EngineInfo) -> Scoring:
    """Read rows to score.

    Raises:
        Refused: they are invalid, or do not fit into the window.
    """
    prompts, outputs = fields.read_rows("prompts"), fields.read_rows("outputs")
    if len(prompts) != len(outputs) or not all(prompts):
        raise fields.refuse("outputs", "must have a list for each of the prompts, none of which may be empty")
    for rows, name in ((prompts, "prompts"), (outputs, "outputs")):
        require_ids(rows, info.vocabulary, name)
    longest = max((len(prompt) + len(output) for prompt, output in zip(prompts, outputs, strict=True)), default=0)
    if longest > info.window:
        raise Refused(400, f"A row has {longest} tokens, but the model's window has {info.window}.", "outputs")
    temperature = fields.read_number("temperature", 1.0, can_sample_at, "of at least 1e-6")
    return Scoring(prompts, outputs, temperature)


async def pause(request: Request) -> JSONResponse:
    """`POST /pause?mode=wait|abort&timeout=S`: stop starting answers; 409 if running ones do not end in time."""
    mode = request.query_params.get("mode", "abort")
    if mode not in get_args(PauseMode):
        raise Refused(400, f"mode must be one of {', '.join(get_args(PauseMode))}, not '{mode[:40]}'.", "mode")
    seconds = read_seconds(request, PAUSE_SECONDS)
    await find_state(request).keeper.pause(mode, seconds)  # type: ignore[arg-type]
    return JSONResponse({"status": "paused"})


def read_seconds(request: Request, default: float) -> float:
    """Return the deadline in the query of a request.

    Raises:
        Refused: it is not a number of seconds.
    """
    with suppress(ValueError):
        seconds = float(request.query_params.get("timeout", default))
        if 0 <= seconds <= 86_400:
            return seconds
    raise Refused(400, "timeout must be a number of seconds from 0 to 86400.", "timeout")


async def resume(request: Request) -> JSONResponse:
    """`POST /resume`: resume starting answers."""
    await find_state(request).keeper.resume()
    return JSONResponse({"status": "resumed"})


async def is_paused(request: Request) -> JSONResponse:
    """`GET /is_paused`."""
    return JSONResponse({"is_paused": find_state(request).keeper.paused})


async def update(request: Request) -> JSONResponse:
    """`POST /qed/update`: load the weights of a local folder; after a 400 with a reason, the previous ones are kept."""
    state = find_state(request)
    fields = await read_fields(request, state.body_limit)
    folder = fields.read_text("folder")
    if not folder or not Path(folder).is_absolute():
        raise fields.refuse("folder", "must be the absolute path of a folder with weights")
    version = fields.read_integer("version", 0, 0, INT64 - 1)
    await state.keeper.update(Path(folder), version)
    return JSONResponse({"version": version})


async def reset_prefix_cache(request: Request) -> JSONResponse:
    """`POST /reset_prefix_cache`: does nothing, because new weights already drop the state of a session's answers."""
    return JSONResponse({"status": "ok"})


async def sleep(request: Request) -> JSONResponse:
    """`POST /sleep`: free the device's memory."""
    await find_state(request).keeper.sleep()
    return JSONResponse({"status": "asleep"})


async def wake_up(request: Request) -> JSONResponse:
    """`POST /wake_up`: move the weights back to the device."""
    await find_state(request).keeper.wake()
    return JSONResponse({"status": "awake"})


async def is_sleeping(request: Request) -> JSONResponse:
    """`GET /is_sleeping`."""
    return JSONResponse({"is_sleeping": find_state(request).keeper.asleep})


ROUTES = [
    Route("/qed/batch", sample_batch, methods=["POST"]),
    Route("/qed/score", score, methods=["POST"]),
    Route("/qed/update", update, methods=["POST"]),
    Route("/pause", pause, methods=["POST"]),
    Route("/resume", resume, methods=["POST"]),
    Route("/is_paused", is_paused),
    Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
    Route("/sleep", sleep, methods=["POST"]),
    Route("/wake_up", wake_up, methods=["POST"]),
    Route("/is_sleeping", is_sleeping),
]
