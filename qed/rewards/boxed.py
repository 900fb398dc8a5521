"""Right when the last \\boxed{…} equals the answer."""

from __future__ import annotations

from qed.grading.equal import equal
from qed.grading.extract import last_boxed
from qed.types import Grade, Rollout


def reward(rollout: Rollout) -> Grade:
    """Reward = correct."""
    found = last_boxed(rollout.text)
    correct = found is not None and equal(rollout.problem.answer, found).correct
    return Grade(float(correct), correct, found is not None, found, {"correct": float(correct)})
