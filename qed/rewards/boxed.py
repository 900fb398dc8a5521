"""Right when the last \\boxed{…} equals the answer."""

from __future__ import annotations

from qed.grading.extract import find_last_boxed
from qed.rewards.verdicts import judge_answer
from qed.types import Grade, Rollout


def reward(rollout: Rollout) -> Grade:
    """Reward = correct."""
    found = find_last_boxed(rollout.text)
    verdict = judge_answer(rollout.problem.answer, found)
    pay = float(verdict.correct)
    return Grade(pay, verdict.correct, found is not None, found, {"correct": pay}, verdict.tier, verdict.reason)
