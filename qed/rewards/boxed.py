"""Correct when the last \\boxed{…} before the next turn equals the gold answer."""

from __future__ import annotations

from dataclasses import dataclass

from qed.grading.extract import find_last_boxed
from qed.grading.extraction.marks import cut_at_turn
from qed.grading.policy import PolicyName, find_policy
from qed.rewards.verdicts import grade_by_verdict, judge_answer
from qed.types import Grade, Rollout


@dataclass(frozen=True)
class Boxed:
    """Reward = correct."""

    policy: PolicyName = "math"
    """How answers are compared: math, qwen (also accepts 100 times, 1/100 or close values), strict (no conventions)."""

    def __call__(self, rollout: Rollout) -> Grade:
        answer = find_last_boxed(cut_at_turn(rollout.text))
        return grade_by_verdict(judge_answer(rollout.problem.answer, answer, find_policy(self.policy)), answer)


reward = Boxed()
