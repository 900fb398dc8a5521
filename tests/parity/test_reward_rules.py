"""Rewards against what their references say: recorded cases, the references' patterns, and closed forms."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.grading.strings import Grader
from qed.rewards import base, gsm8k_xml, question_only, r1_zero, working_out
from qed.types import Grade, Problem, Rollout


def rollout(text: str, gold: str = "12", tokens: int = 0) -> Rollout:
    return Rollout(Problem("p", "?", gold), (), (7,) * tokens, (), text, "stop")


def recorded(shared: Path) -> list[dict[str, object]]:
    cases: list[dict[str, object]] = json.loads((shared / "vectors" / "rewards_r1_zero.json").read_text())["cases"]
    assert len(cases) == 60
    return cases


def as_recorded(grade: Grade) -> dict[str, float]:
    return {
        "format_reward": float(grade.format_ok),
        "answer_reward": float(grade.correct),
        "reward": grade.reward,
    }


@pytest.mark.parametrize(("grader", "column"), [("fast", "fast_true"), ("slow", "fast_false")])
@pytest.mark.parametrize("leaf", [r1_zero, question_only], ids=["r1_zero", "question_only"])
def test_every_recorded_case_agrees(shared: Path, leaf: ModuleType, grader: Grader, column: str) -> None:
    for case in recorded(shared):
        expected = case[f"{leaf.__name__.rpartition('.')[2]}_{column}"]
        assert as_recorded(leaf.score_response(case["response"], case["ground_truth"], grader)) == expected, case


def test_our_own_grader_differs_from_the_slow_reference_in_one_case(shared: Path) -> None:
    """The reference refuses a unit that the gold does not have; here a missing unit is fine, and so is an added one."""
    differing = [
        (case["response"], case["ground_truth"])
        for case in recorded(shared)
        if as_recorded(r1_zero.score_response(str(case["response"]), case["ground_truth"]))  # type: ignore[arg-type]
        != case["r1_zero_fast_false"]
    ]
    assert differing == [("reasoning </think> <answer> 18 dollars </answer>", "18")]
    for case in recorded(shared):
        grade = question_only.score_response(str(case["response"]), case["ground_truth"])  # type: ignore[arg-type]
        assert as_recorded(grade) == case["question_only_fast_false"]


# Texts made of the pieces that the patterns look for, so that near misses are common.
XML = st.lists(
    st.sampled_from(["<reasoning>", "</reasoning>", "<answer>", "</answer>", "\n", "\n", " ", "x", "7"]), max_size=14
).map("".join)
WELL_FORMED = st.lists(st.sampled_from(["\n", " ", "x", "</answer>", "</reasoning>"]), max_size=4).map(
    lambda inner: "<reasoning>\n{0}\n</reasoning>\n<answer>\n{0}\n</answer>\n{1}".format(
        "".join(inner), "\n" * len(inner)
    )
)


@given(st.one_of(XML, WELL_FORMED), st.booleans())
def test_the_blocks_are_those_of_the_patterns(text: str, dotall: bool) -> None:
    flags = re.DOTALL if dotall else 0
    strict = re.match(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", text, flags)
    soft = re.match(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", text, flags)
    assert gsm8k_xml.matches_strict(text, dotall) == bool(strict)
    assert gsm8k_xml.matches_soft(text, dotall) == bool(soft)


@given(st.one_of(XML, WELL_FORMED))
def test_the_tags_are_counted_with_what_follows_them(text: str) -> None:
    pay = sum(
        0.125 for tag in ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>") if text.count(tag) == 1
    )
    if text.count("\n<answer>\n") == 1:
        pay -= 0.001 * len(text.split("\n</answer>\n")[-1])
    if text.count("\n</answer>") == 1:
        pay -= 0.001 * (len(text.split("\n</answer>")[-1]) - 1)
    assert gsm8k_xml.score_tags(text) == pytest.approx(pay, abs=1e-12)


SOLUTIONS = st.lists(
    st.sampled_from(["<end_working_out>", "<SOLUTION>", "</SOLUTION>", "\n", " ", "x", "7", "-", ".", "<eos>"]),
    max_size=14,
).map("".join)


@given(SOLUTIONS, st.sampled_from(["", "<eos>"]))
def test_the_held_solution_is_that_of_the_pattern(text: str, end_token: str) -> None:
    end = rf"(?:{re.escape(end_token)})?" if end_token else ""
    pattern = rf"<end_working_out>.*?<SOLUTION>(.+?)</SOLUTION>\s*{end}\s*$"
    found = re.search(pattern, text, re.DOTALL | re.MULTILINE)
    held = working_out.find_solution(text, working_out.WORKING_OUT, end_token)
    assert held == (found.group(1) if found else None)


@given(SOLUTIONS)
def test_the_number_is_that_of_the_pattern(text: str) -> None:
    found = re.search(r"<SOLUTION>.*?\s*(-?[\d.,]+)", text, re.DOTALL)
    pay = working_out.PRESETS["notebook"]
    expected = pay.number_none
    if found:
        try:
            expected = pay.number_equal if float(found.group(1).replace(",", "")) == -7 else pay.number_other
        except ValueError:
            expected = pay.number_unparsable
    assert working_out.score_number(text.partition("<SOLUTION>")[2], "-7", pay) == expected


def paid(entry: str, text: str, tokens: int, *options: str) -> float:
    """What one part pays for a text of so many tokens, where the longest answer has 100."""
    return base.load_reward([entry], options, max_tokens=100).grade([rollout(text, "12", tokens)])[0].reward


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (130, -1.0)]
)
def test_overlong_is_dapos_line(tokens: int, penalty: float) -> None:
    assert paid("overlong", "", tokens) == pytest.approx(penalty)  # the cache is a fifth: 20 tokens
    assert paid("overlong", "", tokens, "overlong.cache=20") == pytest.approx(penalty)


@pytest.mark.parametrize(
    ("tokens", "right", "wrong"), [(0, 1.0, -1.0), (50, 0.75, -0.75), (100, 0.5, -0.5), (900, 0.5, -0.5)]
)
def test_cosine_runs_from_the_shortest_to_the_longest(tokens: int, right: float, wrong: float) -> None:
    assert paid("cosine", "so 12", tokens) == pytest.approx(right)
    assert paid("cosine", "so 13", tokens) == pytest.approx(wrong)


@given(st.integers(0, 100))
def test_cosine_is_the_closed_form_of_the_paper(tokens: int) -> None:
    curve = 0.5 + 0.5 * (1.0 - 0.5) * (1 + math.cos(math.pi * tokens / 100))
    assert paid("cosine", "12", tokens) == pytest.approx(curve)


@given(st.text(alphabet="ab \n", max_size=40), st.integers(1, 4))
def test_repetition_is_the_share_of_repeated_runs(text: str, ngram: int) -> None:
    words = text.lower().split()
    runs = [tuple(words[start : start + ngram]) for start in range(len(words) - ngram + 1)]
    expected = -2.0 * (1 - len(set(runs)) / len(runs)) if runs else 0.0
    options = (f"repetition.ngram={ngram}", "repetition.max_penalty=-2")
    assert paid("repetition", text, 0, *options) == pytest.approx(expected)
