"""Routes of OpenAI's API as vLLM serves them: models, completions, chat, and the tokenizer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import qed
from qed.serving import replies
from qed.serving.answering import Piece, answer_in_pieces, answer_whole, score_prompts
from qed.serving.bodies import ClosedStream, build_json, read_fields, run_for_client
from qed.serving.fields import Fields, require_ids
from qed.serving.model_text import ModelText
from qed.serving.protocol import Question, read_chat, read_completion, read_conversation, require_model
from qed.serving.refusals import RETRY, Refused
from qed.serving.state import ServerState, find_state, refuse_error

MOST_OPEN = 8_192  # running and waiting answers of all requests
Read = Callable[[Fields, ModelText], Awaitable[Question]]


async def list_models(request: Request) -> JSONResponse:
    """`GET /v1/models`."""
    state = find_state(request)
    return JSONResponse({"object": "list", "data": [_describe_model(state, name) for name in state.names]})


async def show_model(request: Request) -> JSONResponse:
    """`GET /v1/models/NAME`."""
    state = find_state(request)
    name = request.path_params["name"]
    require_model(Fields({"model": name}), state.names)
    return JSONResponse(_describe_model(state, name))


def _describe_model(state: ServerState, name: str) -> dict[str, Any]:
    info = state.info
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "qed",
        "root": str(Path(info.model).resolve()) if Path(info.model).is_dir() else info.model,
        "max_model_len": info.window,
        "qed": {
            "engine": "native",
            "qed": qed.__version__,
            "weight_version": state.keeper.version,
            "precision": info.precision,
            "exact_logps": info.exact_logps,
            "threads": info.threads,
            "device": info.device,
            "ends": list(info.ends),
            "paused": state.keeper.paused,
            "parameters": info.parameters,
            "process": info.process,
        },
    }


async def complete(request: Request) -> Response:
    """`POST /v1/completions`."""
    return await _answer(request, read_completion)


async def chat(request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    return await _answer(request, read_chat)


async def _answer(request: Request, read: Read) -> Response:
    """Answer a request that `read` parses for one of the two routes."""
    state = find_state(request)
    fields = await read_fields(request, state.body_limit)
    require_model(fields, state.names)
    question = await read(fields, state.text)
    if state.metrics.open_answers + len(question.prompts) * question.n > MOST_OPEN:
        raise Refused(429, f"{state.metrics.open_answers} answers are already pending. Try again later.", headers=RETRY)
    if not question.stream:
        return await run_for_client(request, _answer_whole(state, question))
    events = _write_events(state, question)
    # Wait for the first event, so that an earlier failure becomes an error with its own status.
    first = await run_for_client(request, anext(events))
    return ClosedStream(_begin_with(first, events), "text/event-stream")


async def _answer_whole(state: ServerState, question: Question) -> Response:
    engine = state.keeper.require()
    scores = await score_prompts(engine, question)
    if question.sampling.max_tokens:
        pieces = await answer_whole(engine, question, state.text, state.metrics)
    else:
        pieces = _build_empty(question, engine.version)
    writer = replies.Writer(question, state.text, state.names[0], scores)
    numbers = sum(len(one.tokens) for one in pieces) + sum(len(one.logps) for one in scores)
    return await build_json(lambda: writer.write_whole(pieces), numbers * (1 + (question.logprobs or 0)))


async def _write_events(state: ServerState, question: Question) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream; an error after the first becomes an event."""
    engine = state.keeper.require()
    writer = replies.Writer(question, state.text, state.names[0], await score_prompts(engine, question))
    begun = False
    try:
        if not question.sampling.max_tokens:
            for piece in _build_empty(question, engine.version):
                yield b"".join(writer.write_chunks(piece))
        else:
            async with aclosing(answer_in_pieces(engine, question, state.text, state.metrics)) as pieces:
                async for piece in pieces:
                    yield b"".join(writer.write_chunks(piece))
                    begun = True
    except Exception as error:
        if not begun:
            raise
        yield replies.format_event(refuse_error(error).build_body())
        yield replies.DONE
        return
    yield b"".join(writer.write_end())


def _build_empty(question: Question, version: int) -> list[Piece]:
    """Build the answers to a question that requests no tokens, only its own prompts."""
    return [
        Piece(index, "", (), (), (), "length", None, version) for index in range(len(question.prompts) * question.n)
    ]


async def _begin_with(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for one in rest:
            yield one


async def tokenize(request: Request) -> JSONResponse:
    """`POST /tokenize`: the token ids of a prompt or of messages."""
    state = find_state(request)
    fields = await read_fields(request, state.body_limit)
    require_model(fields, state.names)
    if fields.find("messages") is not None:
        tokens = await read_conversation(fields, state.text)
    else:
        prompt = fields.read_text("prompt")
        if prompt is None:
            raise fields.refuse("prompt", "must be a string")
        tokens = await state.text.encode(prompt, "prompt", fields.read_switch("add_special_tokens", True))
    names = state.text.tokenizer.convert_ids_to_tokens(tokens) if fields.read_switch("return_token_strs") else None
    window = state.text.window
    return JSONResponse({"count": len(tokens), "max_model_len": window, "tokens": tokens, "token_strs": names})


async def detokenize(request: Request) -> JSONResponse:
    """`POST /detokenize`: the text of token ids."""
    state = find_state(request)
    fields = await read_fields(request, state.body_limit)
    require_model(fields, state.names)
    tokens = fields.read_ids("tokens")
    require_ids([tokens], state.text.vocabulary, "tokens")
    return JSONResponse({"prompt": state.text.decode(tokens, skip_special=False)})


ROUTES = [
    Route("/v1/models", list_models),
    Route("/v1/models/{name:path}", show_model),
    Route("/v1/completions", complete, methods=["POST"]),
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
]
