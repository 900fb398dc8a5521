"""Shared by several rewards: whether an answer is correct, and its class by format × answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qed.grading.equal import Verdict, equal
from qed.grading.extract import ANSWER_TAGS, Extracted, Refusal, Tags, find_final_answer
from qed.grading.policy import MATH, Policy
from qed.types import Grade, Rollout

NO_ANSWER = Verdict(False, "extract", "no answer found")
NO_FORMAT = Verdict(False, "format", "the format does not hold")
CLASSES = ("fmt1_ans1", "fmt1_ans0", "fmt0_ans1", "fmt0_ans0")


def judge_answer(gold: str, answer: str | None, policy: Policy = MATH) -> Verdict:
    """Return the verdict on an answer; a missing answer is wrong."""
    return NO_ANSWER if answer is None else equal(gold, answer, policy)


def judge_found(gold: str, found: Extracted | Refusal, policy: Policy = MATH) -> tuple[Verdict, str | None]:
    """Return the verdict on an extraction result, and the answer; a refusal is wrong, with its reason."""
    if isinstance(found, Refusal):
        return Verdict(False, "extract", found.reason), None
    return judge_answer(gold, found.answer, policy), found.answer


def grade_by_final_answer(rollout: Rollout, mode: str = "flexible", policy: Policy = MATH) -> Grade:
    """Grade the final answer of the text, wherever it is: 1 if correct. The format is correct if there is an answer."""
    return grade_by_verdict(*judge_found(rollout.problem.answer, find_final_answer(rollout.text, mode), policy))


def grade_by_verdict(verdict: Verdict, answer: str | None) -> Grade:
    """Return the grade of a verdict: 1 if correct. The format is correct if there is an answer."""
    score = float(verdict.correct)
    parts = {"correct": score}
    return Grade(score, verdict.correct, answer is not None, answer, parts, verdict.tier, verdict.reason)


def grade_by_number(number: Any, rollout: Rollout) -> Grade:
    """Return the grade for a numeric reward; the final answer decides correctness."""
    return replace(grade_by_final_answer(rollout), reward=float(number), parts={})


def classify(grade: Grade, gold: str, text: str, policy: Policy = MATH, tags: tuple[Tags, ...] = ANSWER_TAGS) -> str:
    """Return the class of a graded text: whether the format (`fmt1`) and the answer (`ans1`) are correct.

    Most rewards count an ill-formatted answer as wrong. Here the lenient extractor searches for the answer, even in an
    unclosed box or tag, to tell a model that cannot solve the problem from one that only misses the format. `tags` are
    the pairs that may enclose an answer.
    """
    correct = grade.correct
    if not correct and not grade.format_ok:
        correct = judge_found(gold, find_final_answer(text, "lenient", tags), policy)[0].correct
    return f"fmt{int(grade.format_ok)}_ans{int(correct)}"
