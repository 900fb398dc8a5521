"""Correct when the last \\boxed{…} equals the gold answer."""

from __future__ import annotations

from qed.grading.extract import find_last_boxed
from qed.rewards.verdicts import judge_answer
from qed.types import Grade, Rollout


def reward(rollout: Rollout) -> Grade:
    """Reward = correct."""
    answer = find_last_boxed(rollout.text)
    verdict = judge_answer(rollout.problem.answer, answer)
    score = float(verdict.correct)
    return Grade(score, verdict.correct, answer is not None, answer, {"correct": score}, verdict.tier, verdict.reason)
