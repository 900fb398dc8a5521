"""Correct when the whole text is <think>…</think><answer>RESULT</answer> and RESULT equals the gold answer; the format
alone earns 0.1. RESULT may be a sentence or have a box."""

from __future__ import annotations

from dataclasses import dataclass

from qed.grading.extract import find_between, read_tag
from qed.grading.policy import PolicyName, find_policy
from qed.rewards.verdicts import NO_FORMAT, judge_answer
from qed.types import Grade, Rollout

FORMAT_WEIGHT = 0.1
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True)
class ThinkAnswer:
    """Reward = correct + 0.1 x format; an answer outside the format is never correct."""

    policy: PolicyName = "math"
    """How answers are compared: math, qwen (also accepts 100 times, 1/100 or close values), strict (no conventions)."""

    def __call__(self, rollout: Rollout) -> Grade:
        text = rollout.text.strip()
        format_ok = is_well_formed(text)
        content = find_between(text, "<answer>", "</answer>")
        extracted = None if content is None else read_tag(content)
        verdict = NO_FORMAT
        if format_ok:
            verdict = judge_answer(rollout.problem.answer, extracted, find_policy(self.policy))
        correct = verdict.correct
        parts = {"correct": float(correct), "format": float(format_ok)}
        score = correct + FORMAT_WEIGHT * format_ok
        return Grade(score, correct, format_ok, extracted, parts, verdict.tier, verdict.reason)


def is_well_formed(text: str) -> bool:
    """Return whether each tag occurs exactly once, in order, with only whitespace between the two parts."""
    if any(text.count(tag) != 1 for tag in TAGS):
        return False
    thought, _, rest = text.removeprefix("<think>").partition("</think>")
    rest = rest.strip()
    return (
        text.startswith("<think>")
        and rest.startswith("<answer>")
        and rest.endswith("</answer>")
        and not any(tag in thought for tag in TAGS)
    )


reward = ThinkAnswer()
