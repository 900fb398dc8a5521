"""Advantage estimators: from the rewards of one group, [G] float64, to its advantages, [G] float64.

All of them give exactly 0 to a group of equal rewards where they subtract a baseline of the group. They use nothing but
the methods of the tensors that they are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal["group", "none"]


def all_equal(rewards: Tensor) -> bool:
    """Whether a group's rewards are the same number; compared directly, because rounding can leave a tiny deviation."""
    return bool((rewards == rewards[0]).all())


def group(rewards: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    """GRPO (arXiv 2402.03300): (r - mean) / (std + epsilon), std with n - 1; without the division Dr. GRPO's."""
    if all_equal(rewards):
        return rewards * 0
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + epsilon) if normalize_std else centred
