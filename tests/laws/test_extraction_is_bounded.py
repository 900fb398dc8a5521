"""Extraction does bounded work on any text, and never pays for what a text denies or leaves open."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.grading.equal import equal
from qed.grading.extract import MODES, Extracted, find_final_answer

SECONDS = 2.0  # of processor time for one text
PIECES = (
    "{x", "(", "[", "−-", "- ", "> ", "that ", "so that ", "not ", "but ", "so ", "\\[", "\\(", "$5 ", "$$", "**", "1,",
    "1 000 ", "answer is 5 ", "answer ", "答案是5", "either 5 or ", "5 and ", "\\begin{cases}", "\\\\ ", "= ", "x = ",
    "\\boxed{1}, ", "(a) \\boxed{1} ", "e.g. ", "! ", "?", "| a | 5 |\n", "```\n", "wait, ", "<think>", "5 to ",
    "<b>", "</b>", "<b>5</b> ", "<b>5 ", "1! a ", "<a b=\"", "<SOLUTION>",
    "the square root of ", "minus ", "a.a.", "\u200b", "A) ", "March ", "which is 5 ", "maybe ", "# ",
)  # fmt: skip
NUMBERS = st.integers(-999, 999).map(str)


@pytest.mark.parametrize("piece", PIECES)
def test_a_repeated_piece_takes_bounded_time(piece: str) -> None:
    start = time.process_time()
    find_final_answer(piece * (60_000 // len(piece)))
    assert time.process_time() - start < SECONDS


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join), st.sampled_from(MODES))
def test_any_mixture_has_an_outcome(text: str, mode: str) -> None:
    found = find_final_answer(text, mode)
    assert found.answer == found.answer.strip() != "" if isinstance(found, Extracted) else found.reason


DOUBTS = (
    "The answer is not {}.", "{} is not the answer.", "**{}** is wrong.", "maybe {}", "Is it {}?", "It isn't {}.",
    "neither {} nor 1234", "The answer is either {} or 1234.", "x = {} or x = 1234", "more than {}",
    "The answer is {}. Wait, no: it is 1234.", "If the answer were {}, we would have 1234.", "{} is too small.",
    "答案不是{}。", "Die Antwort ist nicht {}.", "La réponse n'est pas {}.", "La respuesta no es {}.", "Ответ не {}.",
)  # fmt: skip
STATEMENTS = (
    "The answer is {}.", "**{}**", "So x = {}.", "Answer: {}", "The total is {}, because 3 of them left.",
    "It is not 1234, it is {}.", "The answer is {}, not 1234.", "答案是{}。", "Ответ: {}", "Die Antwort ist {}.",
    "First I got 1234. Wait, that is wrong. The answer is {}.", "Is it 1234? No, it is {}.", "{}",
    "Step 1: add 3 and 4.\n\n## Final Answer\n\n$${}$$", "<answer>So the answer is {}.</answer>",
)  # fmt: skip


@given(NUMBERS, st.sampled_from(DOUBTS))
def test_what_is_denied_or_left_open_is_not_paid(number: str, doubt: str) -> None:
    found = find_final_answer(doubt.format(number))
    assert not (isinstance(found, Extracted) and equal(number, found.answer).correct)


@given(NUMBERS, NUMBERS, st.sampled_from(STATEMENTS))
def test_what_is_stated_is_found(number: str, other: str, statement: str) -> None:
    found = find_final_answer(statement.format(number))
    assert isinstance(found, Extracted)
    assert equal(number, found.answer).correct
    assert number == other or not equal(other, found.answer).correct
