"""A number or a fraction in digits is read without the tokenizer, and as the parser reads it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.grading import reading
from qed.grading.reading import PLAIN_NUMBER, read_answer
from qed.grading.tokens import Letters

DIGITS = st.text("0123456789", min_size=1, max_size=30)
SHAPES = st.sampled_from(
    ("{0}", "{0}.{1}", "\\frac{{{0}}}{{{1}}}", "\\dfrac{{{0}}}{{{1}}}", "\\tfrac{{{0}}}{{{1}}}", "{0}/{1}")
)
NOTHING = re.compile(r"(?!)")


@given(SHAPES, DIGITS, DIGITS, st.sampled_from(("", "-")), st.sampled_from(("plain", "units", "variables")))
def test_a_plain_number_is_read_as_the_parser_reads_it(
    shape: str, first: str, second: str, sign: str, letters: Letters
) -> None:
    text = sign + shape.format(first, second)
    assert PLAIN_NUMBER.fullmatch(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "PLAIN_NUMBER", NOTHING)
        parsed = read_answer(text, letters)
    assert read_answer(text, letters) == parsed


@pytest.mark.parametrize(
    "text", ["+5", "5.", ".5", "1,000", "1e3", "\\frac12", "\\frac{-1}{2}", "5 ", "٥", "1/2/3", "1/{2}"]
)
def test_other_notations_go_to_the_parser(text: str) -> None:
    assert not PLAIN_NUMBER.fullmatch(text)
