"""Graders on lines with their reasons: what is extracted, what is equal, what each reward pays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed import plugins
from qed.grading.equal import as_number, equal
from qed.grading.extract import between, last_boxed
from qed.types import Problem, Rollout


def graded(reward: str, text: str, gold: str = "12") -> tuple[float, bool, bool]:
    """What a reward says of a text: reward, correct, format."""
    verdict = plugins.load("rewards", reward).reward(Rollout(Problem("p", "?", gold), (), (), (), text, "stop"))
    return verdict.reward, verdict.correct, verdict.format_ok


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("12", "12", True),
        ("12", " 12. ", True),  # spaces and a final full stop say nothing
        ("1234", "1,234", True),  # commas between thousands
        ("1,2", "12", False),  # a list of two is no number
        ("0.5", "1/2", True),  # exact rational numbers
        ("0.5", ".50", True),
        ("-3", "- 3", True),
        ("3", "-3", False),
        ("$15", "15", True),
        ("12", "12x", False),
        ("12", "1e1", False),  # no exponents: 1e1000000000 would be one
        ("2", "²", False),  # str.isdigit would say yes
        ("1/0", "1/0", True),  # the same text is the same answer
        ("1/0", "2/0", False),
        ("x+1", "x + 1", True),
        ("", "", False),  # nothing is no answer
        ("12", "--12", False),
        ("1", "9" * 5000, False),
    ],
)
def test_equality(gold: str, answer: str, same: bool) -> None:
    assert equal(gold, answer) is same
    assert equal(answer, gold) is same


@given(st.text(max_size=40), st.text(max_size=40))
def test_equality_is_symmetric_and_takes_any_text(one: str, other: str) -> None:
    assert equal(one, other) == equal(other, one)
    as_number(one)


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**4))
def test_equal_numbers_are_equal_however_written(numerator: int, denominator: int) -> None:
    assert equal(f"{numerator}/{denominator}", f"{3 * numerator}/{3 * denominator}")
    assert equal(str(numerator), f"{numerator:,}")
    assert not equal(str(numerator), str(numerator + 1))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{12}.", "12"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),  # escaped braces are not braces
        (r"\boxed{1} then \boxed{2", "1"),  # an unfinished box is no answer
        (r"\boxed{a \boxed{b}}", "b"),
        ("12", None),
        (r"\boxed{", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


def test_extraction_comes_back_from_hostile_text() -> None:
    """A million signs each: a search that is not linear would take hours."""
    for text in ("\\boxed{" * 150_000, "{" * 10**6, "}" * 10**6, "\\" * 10**6, "<answer>" * 120_000):
        assert last_boxed(text) is None
        assert between(text, "<answer>", "</answer>") is None


@pytest.mark.parametrize(
    ("text", "pay"),
    [
        ("<think>5+7=12</think><answer>12</answer>", (1.1, True, True)),
        ("<think>5+7=12</think> <answer>12</answer>\n", (1.1, True, True)),
        ("<think></think><answer>12</answer>", (1.1, True, True)),  # an empty thought keeps the format
        ("<think>5+7=13</think><answer>13</answer>", (0.1, False, True)),
        ("<answer>12</answer>", (0.0, False, False)),  # right, but without the thought
        ("12", (0.0, False, False)),
        ("<think>a</think><answer>12</answer> or 13", (0.0, False, False)),
        ("<think>a</think><answer>13</answer><answer>12</answer>", (0.0, False, False)),  # two answers are none
        ("<answer>12</answer><think>a</think>", (0.0, False, False)),
        ("<think>a<answer>12</answer></think>", (0.0, False, False)),
        ("<think><answer></think>12</answer>", (0.0, False, False)),
    ],
)
def test_think_answer(text: str, pay: tuple[float, bool, bool]) -> None:
    assert graded("think_answer", text) == pytest.approx(pay)


@pytest.mark.parametrize(
    ("text", "pay"),
    [
        (" 5+7 </think> <answer> 12 </answer>", (1.0, True, True)),
        (" 5+7 </think> <answer> \\boxed{12} </answer>", (1.0, True, True)),
        (" 5+7 </think> <answer> 13 </answer>", (0.0, False, True)),
        (" 5+7 </think><answer> 12 </answer>", (0.0, False, False)),  # one space, exactly
        (" 5+7 </think>\n<answer> 12 </answer>", (0.0, False, False)),
        (" 5+7 </think> <answer> 12", (0.0, False, False)),
        (" 5+7 </think> <answer> \\boxed{12 </answer>", (0.0, False, True)),  # a box that never closes
    ],
)
def test_r1_zero(text: str, pay: tuple[float, bool, bool]) -> None:
    assert graded("r1_zero", text) == pay


def test_r1_zero_agrees_with_the_recorded_reference(shared: Path) -> None:
    """The format on every recorded case; an answer is never paid that the reference's strict mode and slow mode
    refuse."""
    cases = json.loads((shared / "vectors" / "rewards_r1_zero.json").read_text())["cases"]
    for case in cases:
        if not isinstance(case["response"], str) or not isinstance(case["ground_truth"], str):
            continue
        reward, _, format_ok = graded("r1_zero", case["response"], case["ground_truth"])
        assert float(format_ok) == case["r1_zero_fast_true"]["format_reward"], case["response"]
        allowed = max(case["r1_zero_fast_true"]["reward"], case["r1_zero_fast_false"]["reward"])
        assert reward <= allowed, case
