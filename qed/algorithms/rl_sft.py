"""RL with an SFT loss, a baseline of LUFFY (arXiv 2504.14945): SFT on demonstrations, RL on sampled completions.

loss = - sft sum_t log pi(y_t | x, y_<t) / N over the N tokens of all completions with demonstration tokens
       + the policy gradient over the others, with advantages from the mean and deviation of those others

Both averages are computed over all rows of the optimizer step, so their balance does not depend on the micro-batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from qed.algorithms.base import Average, require
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.guidance import ExpertPrefix
from qed.algorithms.parts.imitation import find_imitated
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class RlSft(PolicyGradient):
    """Imitates demonstrations, and trains on its own completions by policy gradient."""

    average: Average = "constant"
    """How sampled answers are averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(clip_low=1.0, clip_high=math.inf)
    sft: float = 0.1
    """Weight of the SFT loss on answers with demonstration tokens, averaged over all of their tokens. The published
    runs use 1 with a policy gradient summed over 64 rows, which corresponds to about 0.1 with the mean."""
    guidance: ExpertPrefix = field(default_factory=ExpertPrefix)

    imitates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(0 <= self.sft < math.inf, "algorithm.sft must be a finite number, 0 or more.")

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return rows with an advantage or, with an SFT loss, an imitated token."""
        live = super().has_gradient(batch)
        return live if self.sft else live & ~find_imitated(batch)

    def weigh_imitated(self, mask: Tensor) -> Tensor:
        """Compute the weights of a mean over all imitated tokens of the step, times `sft`."""
        return self.sft * mask / mask.sum().clamp(min=1)
