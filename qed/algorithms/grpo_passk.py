"""GRPO for pass@k (arXiv 2503.19595): only the best completion of a group is trained, by its margin over the second.

A = (max r - second r) / (std r + eps) for the best completion, 0 for all others; a tie for the best gives 0
loss = that of GRPO
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class GrpoPassk(PolicyGradient):
    """GRPO that rewards a group by its best completion."""

    advantage: AdvantageEstimator = AdvantageEstimator(estimator="passk")
