"""LUFFY (arXiv 2504.14945): each group contains a demonstration and the policy's own completions, and both are trained.

A = r - mean r over the whole group, including the demonstration
loss = - sum_t w_t A rho_t for sampled tokens, - sum_t w_t A p_t / (p_t + gamma) for the others,
p = pi(y_t | x, y_<t)

The ratio rho is not clipped unless `clip_low` and `clip_high` are set, and the average divides by a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qed.algorithms.base import Average
from qed.algorithms.parts import corrections, requirements, shaping
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.guidance import ExpertPrefix
from qed.algorithms.parts.mixture import OffPolicyAdvantages, split_group
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.shaping import Shaping
from qed.algorithms.parts.surrogates import Surrogate, Terms, mask_off_policy
from qed.types import Advantage, Groups

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Luffy(PolicyGradient):
    """Learns from demonstrations and from its own completions."""

    average: Average = "constant"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(clip_low=1.0, clip_high=math.inf)
    guidance: ExpertPrefix = field(default_factory=ExpertPrefix)
    mixture: OffPolicyAdvantages = field(default_factory=OffPolicyAdvantages)
    shaping: Shaping = field(default_factory=Shaping)

    def __post_init__(self) -> None:
        """Reject settings that would have no effect."""
        super().__post_init__()
        if self.mixture.statistics == "split":
            requirements.require_split_statistics(self.advantage, self.regularizer)

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Compute each group's advantages, weighted by whether the policy sampled the token."""
        if self.mixture.statistics == "shared":
            advantages = super().credit(groups)
        else:
            settings = self.advantage
            advantages = [split_group(group, settings.normalize_std, settings.std_epsilon) for group in groups]
        return [self.mixture.weigh(group, values) for group, values in zip(groups, advantages, strict=True)]

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """Compute the surrogate of sampled tokens, and - A f(p) of demonstration tokens."""
        logps = shaping.fill_masked(logps, batch)
        if self.shaping.own_kind == "none":
            own = super().terms(mask_off_policy(batch), logps)
        else:
            low, high = self.surrogate.clip_low, self.surrogate.clip_high
            kept = corrections.drop_off_policy(batch, logps, self.correction.offpolicy_limit)
            own = shaping.compute_own_terms(kept, logps, self.shaping, low, high)
        terms, stats = shaping.join_terms(batch, own, *self.shaping.weigh_off_policy(logps, batch.behaviour_logps))
        return terms, stats | ({"clip/dropped": batch.prepared.sum()} if self.shaping.drop_above else {})
