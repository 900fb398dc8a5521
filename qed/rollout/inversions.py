"""Measure whether a reward favours wrong answers over correct ones to the same problem."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from qed.types import Rollout


def compute_inverted_share(groups: Sequence[Sequence[Rollout]]) -> float | None:
    """Compute the share of (correct, wrong) pairs of answers to a problem in which the wrong one earns more.

    Args:
        groups: the answers to each problem, with their grades.

    Returns:
        The share over all pairs of all groups; None if no group has both a correct and a wrong answer with a reward.
    """
    pairs = inverted = 0
    for group in groups:
        graded = [(one.grade.correct, one.reward) for one in group if one.grade is not None and one.has_reward]
        right = sorted(reward for correct, reward in graded if correct)
        wrong = [reward for correct, reward in graded if not correct]
        pairs += len(right) * len(wrong)
        # Count the correct answers that earn less than each wrong one.
        inverted += sum(bisect_left(right, reward) for reward in wrong)
    return inverted / pairs if pairs else None
