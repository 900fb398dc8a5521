"""The text of a served answer: in pieces as at once, cut at the first stop string, and never half a character."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qed.models.load import build_tokenizer
from qed.serving.model_text import AnswerText, ModelText

TOKENIZER: Any = build_tokenizer(["one two 1 2 € 👍 and and"], 300)
TEXT = ModelText(TOKENIZER, len(TOKENIZER), 1000)
WORDS = ["one", " two", "€", "👍", " and", "1", "2", "an", "d 1", "é"]
tokens_of_words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(
    lambda words: TOKENIZER("".join(words), add_special_tokens=False)["input_ids"]
)
any_tokens = st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=1, max_size=30)
stops = st.lists(st.sampled_from([" two", "€", "and1", "ne t", "d 1", "👍"]), max_size=2, unique=True)


def read_in_pieces(reader: AnswerText, tokens: list[int], cuts: list[int]) -> list[str]:
    """Read as the tokens grow to each of the cuts, up to the stop string."""
    pieces = []
    for end in sorted({*(cut % (len(tokens) + 1) for cut in cuts), len(tokens)}):
        pieces.append(reader.read(tokens[:end], last=end == len(tokens)))
        if reader.found is not None:
            break
    return pieces


@given(tokens=any_tokens, cuts=st.lists(st.integers(0, 99), max_size=8), stop=stops, keep=st.booleans())
def test_pieces_are_the_text_of_the_whole(tokens: list[int], cuts: list[int], stop: list[str], keep: bool) -> None:
    slow, quick = (AnswerText(TEXT, stop, keep_stop=keep) for _ in range(2))
    whole = quick.read(tokens, last=True)
    assert "".join(read_in_pieces(slow, tokens, cuts)) == whole
    assert slow.found == quick.found
    full = TOKENIZER.decode(tokens, skip_special_tokens=True)
    assert full.startswith(whole)
    if quick.found is None:
        assert whole == full
        assert not any(one in full for one in stop)
    else:
        assert whole.endswith(quick.found) == keep or not keep


@given(tokens=tokens_of_words, cuts=st.lists(st.integers(0, 99), max_size=8))
def test_no_piece_has_half_a_character(tokens: list[int], cuts: list[int]) -> None:
    pieces = read_in_pieces(AnswerText(TEXT), tokens, cuts)
    assert not any("\ufffd" in piece for piece in pieces)


@given(tokens=tokens_of_words, stop=stops, early=st.integers(0, 12))
def test_a_stop_string_counts_after_the_early_tokens(tokens: list[int], stop: list[str], early: int) -> None:
    reader = AnswerText(TEXT, stop, keep_stop=True, early=early)
    shown = "".join(read_in_pieces(reader, tokens, list(range(len(tokens)))))
    full = TOKENIZER.decode(tokens, skip_special_tokens=True)
    begin = len(TOKENIZER.decode(tokens[:early], skip_special_tokens=True).rstrip("\ufffd"))
    ends = [place + len(one) for one in stop for place in range(len(full)) if full.startswith(one, place)]
    expected = min((end for end in ends if end > begin), default=len(full))
    assert shown == full[:expected]
