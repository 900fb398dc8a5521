"""What streams is the text of the whole answer: no half character, no start of a stop string, no tag in pieces."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.cli.answer_view import AnswerView
from qed.models.load import build_tokenizer
from qed.sampling.text_stream import TextStream

STOPS = ("</answer>", "###\n")
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<a", "</", "##", "###\n", " ", "\n")
texts = st.lists(st.sampled_from([*TAGS, "x", "é", "汉字", "👩‍🚀", "½ 7"]) | st.text(max_size=4), max_size=12).map(
    "".join
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Few merges, so that most characters take several tokens."""
    return build_tokenizer(["one two three 1 2 3 ###"], 300)


@given(text=texts, step=st.integers(1, 3))
def test_the_pieces_are_the_text(tokenizer: Any, text: str, step: int) -> None:
    tokens = tokenizer(text.encode("utf-8", "replace").decode(), add_special_tokens=False)["input_ids"]
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    found = [(start + len(stop), start) for stop in STOPS if (start := whole.find(stop)) >= 0]
    end, stop_start = min(found, default=(len(whole), len(whole)))
    expected = whole[:end]
    stream, shown = TextStream(tokenizer, STOPS), ""
    for end in range(step, len(tokens) + 1, step):
        piece = stream.read(tokens[:end])
        # The text itself may have the character that stands for unfinished ones, but not at the end of a piece.
        assert not piece.endswith("\ufffd")
        shown += piece
        assert expected.startswith(shown)
        assert stream.stopped or len(shown) <= stop_start
    assert shown + stream.read(tokens, last=True) == expected


def view(pieces: list[str], show_thinking: bool, terminal: bool = False) -> str:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    shown = AnswerView(stream, show_thinking)
    for piece in pieces:
        shown.write(piece)
    shown.finish()
    return stream.getvalue()


@given(text=texts, size=st.integers(1, 5), show=st.booleans(), terminal=st.booleans())
def test_what_is_shown_does_not_depend_on_the_pieces(text: str, size: int, show: bool, terminal: bool) -> None:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert view(pieces, show, terminal) == view([text], show, terminal)


@pytest.mark.parametrize(
    ("text", "hidden", "shown"),
    [
        ("<think>6 and 7</think><answer> 13 </answer>", "13 ", "<think>6 and 7</think><answer> 13 </answer>"),
        ("13", "13", "13"),
        ("<think>6 and 7 <answer>13</answer>", "13", "<think>6 and 7 <answer>13</answer>"),
        ("<think>cut off", "", "<think>cut off"),
        ("one <think>two</think> three", "one  three", "one <think>two</think> three"),
        (
            "<reasoning>\na\n</reasoning>\n<answer>\n5\n</answer>",
            "5\n",
            "<reasoning>\na\n</reasoning>\n<answer>\n5\n</answer>",
        ),
        ("bell \x07 and \x1b[31mred", "bell  and [31mred", "bell  and [31mred"),
        ("3 < 4 </thin", "3 < 4 </thin", "3 < 4 </thin"),
    ],
)
def test_reasoning_is_hidden_and_control_characters_are_removed(text: str, hidden: str, shown: str) -> None:
    assert view([text], False) == hidden + "\n"
    assert view([text], True) == shown + "\n"


def test_on_a_terminal_reasoning_is_dimmed_and_its_sign_removed() -> None:
    assert view(["<think>a</think>b"], True, terminal=True) == "\x1b[2m<think>a</think>\x1b[0mb\n"
    assert view(["<think>a</think>b"], False, terminal=True) == "\x1b[2mthinking …\r\x1b[K\x1b[0mb\n"
