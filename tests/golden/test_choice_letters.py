"""The letter of a choice with a text behind it: chosen, denied, or replaced by another."""

from __future__ import annotations

import pytest

from qed.grading.equal import equal


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("C", "C. y = 2x"),  # the text of the choice is an equation
        ("C", "C. y = f(x)"),
        ("C", r"C) f(x)=\sin(x)"),
        ("D", "D. F = ma"),
        ("D", "D) x = 5"),
        ("D", "(D) E = mc^2"),
        ("D", "D. Both A and B"),
        ("D", "D. None of the above"),
        ("B", "B. False"),
        ("B", "B) false"),
        ("B", "B. Incorrect"),
        ("C", "C. It is incorrect to say so"),
        ("C", "(C) is not a prime number"),
        ("B", "B. It is a matter of taste"),
        ("B", "B. The answer is not given"),
        ("B", "B: the answer is B"),
        ("C", "C. Only (I) and (IV)"),
        ("J", "J. cat"),  # up to J, as in MMLU-Pro
        ("J", "(J) 12"),
        ("I", r"\text{I. cat}"),
    ],
)
def test_a_letter_with_the_text_of_its_choice_is_chosen(gold: str, answer: str) -> None:
    assert equal(gold, answer).correct
    assert equal(answer, gold).correct
    assert not equal("A", answer).correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("C", "C = 5"),
        ("C", "(C) = 5"),
        ("C", "C. = 5"),
        ("C", "C) x = 5, D) x = 7"),
        ("C", "C. x = 5 or D. x = 6"),
        ("E", "E: x + y + z = 1"),  # the name of a plane
        ("B", "(B) is not the answer"),
        ("B", "(B) is not correct"),
        ("B", "(B) isn't the right choice"),
        ("B", "(B) is wrong"),
        ("B", "B. is wrong because 3 is odd"),
        ("B", r"(B)\text{ is wrong}"),
        ("B", "B) incorrect"),
        ("B", "B) wrong"),
        ("B", "B. It is D"),
        ("B", "B. It's (D)."),
        ("B", "(B) the answer is C"),
        ("B", "B. No, the correct answer is C."),
        ("B", "B: answer: C"),
        ("I", "i"),  # the imaginary unit
        ("J", "(J) is wrong"),
        ("J", "J. cat or I. dog"),
        ("J", "J) cat, I) dog"),
        ("C", "C) cat, J) dog"),
        ("C", "C - 12"),
        ("C", "C - x"),
        ("C", "C - bcd"),
        ("C", "C (x + y)"),
        ("C", "C - D"),
        ("C", "C, D"),
    ],
)
def test_a_letter_that_is_denied_or_calculated_with_is_not_chosen(gold: str, answer: str) -> None:
    assert not equal(gold, answer).correct
    assert not equal(answer, gold).correct


@pytest.mark.parametrize("letter", ["C", "(C)", "option C", r"\text{C}", r"\mathbf{C}"])
@pytest.mark.parametrize(
    "words", [" - photosynthesis", " – the cell", ", photosynthesis", " (photosynthesis)", " - cat"]
)
def test_words_after_a_letter_without_a_mark_are_the_text_of_its_option(letter: str, words: str) -> None:
    assert equal("C", letter + words).correct
    assert not equal("D", letter + words).correct


@pytest.mark.parametrize(
    "words",
    [" - wrong", " (incorrect)", ", not sure", ", maybe delta", " (or D)", " (D is also right)", ", but delta too",
     ", scratch that", " - never mind", ", actually delta", ", and delta", ", I think it is delta", " (unless even)"],
)  # fmt: skip
def test_words_that_weaken_a_letter_are_not_the_text_of_its_option(words: str) -> None:
    assert not equal("C", f"C{words}").correct


@pytest.mark.parametrize("gold", ["C - tax", "C, none", "B, blue", "A (areas)"])
def test_a_gold_that_begins_with_a_letter_may_be_a_formula_or_a_list(gold: str) -> None:
    assert not equal(gold, gold[0]).correct
