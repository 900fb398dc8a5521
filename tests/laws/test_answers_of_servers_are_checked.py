"""An answer of a server is trained on only if its tokens, its length and its finish reason agree."""

from __future__ import annotations

from typing import Any

import pytest

from qed.errors import QedError
from qed.sampling.base import Sampling
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


def read(tokens: tuple[int, ...], reason: str) -> str:
    answer = Answer(tokens, (-1.0,) * len(tokens), reason)
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
