"""GRPO for pass@k (arXiv 2503.19595): only the best answer of a group is trained, by how much better it is.

A = (max r - second r) / (std r + eps) for the best answer, 0 for all others; a tie for the best teaches nothing
loss = that of GRPO
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class GrpoPassk(PolicyGradient):
    """A group is as good as its best answer."""

    advantage: AdvantageEstimator = AdvantageEstimator(estimator="passk")
