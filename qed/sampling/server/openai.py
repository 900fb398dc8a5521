"""Completions over OpenAI's API with vLLM's fields for token ids, complete or streamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from qed.errors import QedError
from qed.net.client import read_events
from qed.net.deadlines import CancelScope
from qed.sampling.base import Sampling
from qed.sampling.server.checks import Answer, read_completion
from qed.sampling.server.dialect import MAX_REPLY, AskAgain, Reader, Server, ServerLost
from qed.types import Completion

ROUTE = "/v1/completions"


def build_body(model: str, prompt: Sequence[int], seed: int, sampling: Sampling, reader: Reader) -> dict[str, Any]:
    """Build the request for one answer: ids in, ids out, and every parameter set, so that no server default applies.

    The server's end tokens are ignored; those of this run end an answer.
    """
    greedy = sampling.temperature == 0  # its log-probs are those of the full distribution, as in all samplers
    return {
        "model": model,
        "prompt": list(prompt),
        "seed": seed,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": 1.0 if greedy else sampling.top_p,
        "top_k": 0 if greedy else sampling.top_k,
        "min_p": 0.0 if greedy else sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
        "return_token_ids": True,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "stop_token_ids": list(reader.find_ends(sampling.stop)),
        "skip_special_tokens": False,
        "add_special_tokens": False,
    }


def complete(
    server: Server, model: str, prompt: Sequence[int], seed: int, sampling: Sampling, scope: CancelScope | None
) -> Completion:
    """Sample one answer; see `Server.complete` for the errors."""
    body = build_body(model, prompt, seed, sampling, server.reader)
    with server.fly(scope) as flight:
        body["model"] = flight.adapter or model
        reply = server.client.ask(
            "POST", ROUTE, body, seconds=server.seconds, max_bytes=MAX_REPLY, scopes=flight.scopes
        )
    choice = _find_choice(server, reply)
    if choice.get("finish_reason") == "abort":
        raise AskAgain
    _require_prompt(server, choice, prompt)
    tokens, logps = _read_tokens(server, choice)
    version = choice.get("weight_version", flight.version)
    reason = str(choice.get("finish_reason"))
    return read_completion(server.url, server.reader, sampling, Answer(tokens, logps, reason, None, version))


def stream(
    server: Server,
    model: str,
    prompt: Sequence[int],
    seed: int,
    sampling: Sampling,
    on_tokens: Callable[[list[int]], None],
) -> Completion:
    """Sample one answer, and call `on_tokens` with all tokens so far whenever new ones arrive.

    An exception raised by `on_tokens` ends the answer, also on the server.
    """
    body = {**build_body(model, prompt, seed, sampling, server.reader), "stream": True}
    tokens, logps, reason = list[int](), list[float](), ""
    with server.fly(None) as flight:
        version = flight.version
        body["model"] = flight.adapter or model
        lines = server.client.stream(ROUTE, body, silence=server.seconds, max_bytes=MAX_REPLY, scopes=flight.scopes)
        with closing(lines):  # type: ignore[type-var]
            for event in read_events(lines):
                if "error" in event:
                    raise QedError(f"The server {server.url} cannot sample: {event['error']}")
                if isinstance(event, dict) and event.get("choices") == []:
                    continue  # the usage, which vLLM sends last with --enable-force-include-usage
                choice = _find_choice(server, event)
                more = _read_tokens(server, choice) if choice.get("token_ids") else ([], [])
                tokens, logps = [*tokens, *more[0]], [*logps, *more[1]]
                reason = choice.get("finish_reason") or reason
                version = choice.get("weight_version", version)
                if more[0]:
                    on_tokens(tokens)
    if reason == "abort":
        raise ServerLost(f"{server.client.name} was paused in the middle of an answer", "busy")
    return read_completion(server.url, server.reader, sampling, Answer(tokens, logps, reason, None, version))


def _find_choice(server: Server, reply: Any) -> dict[str, Any]:
    try:
        choice: dict[str, Any] = reply["choices"][0]
        return choice
    except (KeyError, IndexError, TypeError) as error:
        raise QedError(f"The reply of the server {server.url} is not a completion: {str(reply)[:200]}") from error


def _require_prompt(server: Server, choice: dict[str, Any], prompt: Sequence[int]) -> None:
    """Require that the answer is to the token ids that were sent."""
    echoed = choice.get("prompt_token_ids")
    if echoed is not None and list(echoed) != list(prompt):
        raise QedError(
            f"The server {server.url} answered a different prompt than it was sent: {len(echoed)} tokens instead of "
            f"{len(prompt)}. It must not add or drop tokens."
        )


def _read_tokens(server: Server, choice: dict[str, Any]) -> tuple[list[int], list[float]]:
    tokens, logprobs = choice.get("token_ids"), choice.get("logprobs") or {}
    logps = logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(logps, list):
        raise QedError(
            f"The server {server.url} returns no token ids or no log-probs (fields return_token_ids and "
            "logprobs). vLLM returns both from version 0.10.2 on."
        )
    return tokens, logps
