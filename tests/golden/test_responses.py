"""Whole responses, right and wrong: what is extracted from a sentence, and why nothing is."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest

from qed.grading.equal import equal
from qed.grading.extract import Extracted, Refusal, find_final_answer
from qed.grading.extraction import outcome
from qed.rewards.accuracy import Accuracy
from qed.types import Problem, Rollout

LINES = (Path(__file__).parent / "responses.jsonl").read_text(encoding="utf-8").splitlines()
GROUPS = {name: list(rows) for name, rows in groupby(map(json.loads, LINES), key=lambda row: row["group"])}


@pytest.mark.parametrize("group", GROUPS)
def test_a_response_is_right_or_wrong(group: str) -> None:
    wrong = []
    for row in GROUPS[group]:
        found = find_final_answer(row["response"])
        right = isinstance(found, Extracted) and equal(row["gold"], found.answer).correct
        if right != row["right"]:
            wrong.append((row, found))
    assert not wrong


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The answer is 4 or perhaps 5.", outcome.HEDGED),
        ("42 is not the answer.", outcome.NEGATED),
        ("**5** is wrong", outcome.NEGATED),
        ("The answer is B? No, B is wrong.", outcome.NEGATED),
        ("So x = 41 = 42.", outcome.CONTRADICTORY),
        ("Tom has 5 and Jerry has 7.", outcome.SEVERAL),
        ("The answer is more than 3.", outcome.BOUNDED),
        ("Is it 5?", outcome.ASKED),
        ("The answer is 6. Wait, that is not right.", outcome.RETRACTED),
        (r"so \log x = 42", outcome.UNSOLVED),
        (r"it is 5, so \boxed{5", outcome.CUT_OFF),
        ("<think>so it is 5", outcome.CUT_OFF),
        ("I do not know", outcome.NOT_FOUND),
        ("", outcome.NOT_FOUND),
    ],
)
def test_a_refusal_has_its_reason(text: str, reason: str) -> None:
    assert find_final_answer(text) == Refusal(reason)
    rollout = Rollout(Problem("1", "", "5"), (), (), (), text, "stop")
    grade = Accuracy()(rollout)
    assert (grade.correct, grade.extracted, grade.tier, grade.reason) == (False, None, "extract", reason)


def test_a_box_in_an_open_thought_is_no_strict_answer() -> None:
    text = r"<think>so it is \boxed{42}"
    assert find_final_answer(text, "strict") == Refusal(outcome.CUT_OFF)
    assert find_final_answer(text) == Extracted("42", "box")
    assert find_final_answer(r"<answer>41</answer> <think>\boxed{42}", "strict") == Extracted("41", "tag")
    assert find_final_answer(r"\boxed{41} <think>\boxed{42}") == Extracted("41", "box")


def test_a_sentence_in_a_tag_is_read_in_every_mode() -> None:
    for mode in ("strict", "flexible", "lenient"):
        assert find_final_answer("<answer>So she sold 72 clips.</answer>", mode) == Extracted("72 clips", "tag")
        assert find_final_answer("<answer>red and blue paint</answer>", mode) == Extracted("red and blue paint", "tag")
