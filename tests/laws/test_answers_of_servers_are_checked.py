"""An answer of a server is trained on only if its tokens, its length and its finish reason agree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from qed.errors import QedError
from qed.sampling.base import Sampling
from qed.sampling.server import openai
from qed.sampling.server.checks import Answer, read_completion
from qed.sampling.server.dialect import Reader

END = 1
SAMPLING = Sampling(1.0, max_tokens=3, stop=("bc",))


class Letters:
    """A tokenizer whose tokens are the letters from `a` on, at 2."""

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def decode(self, tokens: Any, skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + token - 2) for token in tokens)


def read(tokens: tuple[int, ...], reason: str, logps: tuple[float, ...] = ()) -> str:
    answer = Answer(tokens, logps or (-1.0,) * len(tokens), reason)
    return read_completion("http://server", Reader(Letters(), (END,)), SAMPLING, answer).stop_reason


@pytest.mark.parametrize("tokens", [(2, 2, END), (2, 3, 4)], ids=["end token", "stop string"])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_that_ends_with_its_last_token_has_ended_whatever_the_server_checks_first(
    tokens: tuple[int, ...], reason: str
) -> None:
    assert read(tokens, reason) == "stop"


def test_answers_have_the_reason_that_their_tokens_show() -> None:
    assert read((2, 2, 2), "length") == "length"
    assert read((3, 4), "stop") == read((END,), "stop") == "stop"


@pytest.mark.parametrize(
    ("tokens", "reason"), [((2, 2, 2), "stop"), ((2, 2), "length"), ((2, END), "length"), ((2, END), "abort")]
)
def test_a_reason_that_the_tokens_contradict_is_refused(tokens: tuple[int, ...], reason: str) -> None:
    with pytest.raises(QedError, match="contradicts itself"):
        read(tokens, reason)


@pytest.mark.parametrize("logps", [(-1.0, 0.1), (-9999.0, -1.0), (-math.inf, -1.0), (-1.0,), (-1.0, -1.0, -1.0)])
def test_log_probs_that_no_sampled_token_can_have_are_refused(logps: tuple[float, ...]) -> None:
    assert read((2, END), "stop", (-9000.0, 1e-4)) == "stop"
    with pytest.raises(QedError, match=r"(?i)log-probs"):
        read((2, END), "stop", logps)


def read_stream(*events: str) -> str:
    def stream(*_: Any, **__: Any) -> Iterator[bytes]:
        yield from (f"data: {event}".encode() for event in (*events, "[DONE]"))

    flight = SimpleNamespace(version=0, adapter=None, scopes=())
    client = SimpleNamespace(stream=stream)
    server: Any = SimpleNamespace(
        url="http://server",
        reader=Reader(Letters(), (END,)),
        seconds=1,
        client=client,
        fly=lambda _: nullcontext(flight),
    )
    return openai.stream(server, "model", (2,), 0, SAMPLING, lambda _: None).stop_reason


def test_events_of_a_stream_hold_tokens_or_the_usage_alone() -> None:
    event = '{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}]}'
    assert read_stream(event, '{"choices": [], "usage": {}}') == "stop"
    for other in ('{"usage": {}}', "[]", '"choices"'):
        with pytest.raises(QedError, match="is not a completion"):
            read_stream(other, event)
    with pytest.raises(QedError, match="no token ids or no log-probs"):
        read_stream(event.replace('"token_logprobs": [-1.0]', ""))
