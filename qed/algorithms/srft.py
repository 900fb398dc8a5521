"""SRFT (arXiv 2506.19767): imitation and reinforcement of demonstrations and of own answers, weighed by entropy.

loss = - 0.5 e^(-H) sum_t log pi(y*_t | x, y*_<t) / N                  over the N tokens of all demonstrations
       - sum_t w_t A p_t                                               on demonstrations, p_t = pi(y*_t | x, y*_<t)
       - sum_t w_t A rho_t, times 0.1 e^H where A > 0                  on sampled answers

A is the advantage within the group, the demonstration included, and H the mean entropy of the policy over the tokens of
the row, without a gradient (equations 8 to 12 of the paper). The behaviour of a demonstration's author counts as 1, so
that its ratio is p. As in the authors' code, H is that of each row, sampled answers have the group's advantage, where
the paper writes the rewards 1 and -1, and the ratio is not clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from qed.algorithms.base import Average, require
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.guidance import WholeDemonstrations
from qed.algorithms.parts.imitation import find_imitated
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.shaping import fill_masked, join_terms
from qed.algorithms.parts.surrogates import Surrogate, Terms, mask_off_policy

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Srft(PolicyGradient):
    """Imitates and reinforces demonstrations, and reinforces its own answers, in one step."""

    average: Average = "constant"
    """How the policy gradient is averaged: over tokens, over sequences, by a constant length, or over sequences' sums.
    """
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(clip_low=1.0, clip_high=math.inf)
    sft: float = 0.5
    """The factor of e^(-H) in the weight of the SFT loss."""
    positive: float = 0.1
    """The factor of e^H in the weight of sampled answers that are better than their group."""
    guidance: WholeDemonstrations = field(default_factory=WholeDemonstrations)

    step_means: ClassVar[tuple[str, ...]] = ("guidance/sft_weight",)

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        require(self.sft >= 0, "algorithm.sft must not be negative.")
        require(self.positive >= 0, "algorithm.positive must not be negative.")

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """Compute the token mean over all demonstration tokens of the step, for the SFT loss."""
        batch = super().prepare(batch, logps, entropy)
        imitated = batch.mask * find_imitated(batch)[:, None]
        return replace(batch, prepared=imitated / imitated.sum().clamp(min=1))

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return rows with an advantage, and the demonstrations."""
        return super().has_gradient(batch) | (find_imitated(batch) if self.sft else False)

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """Compute the surrogate of sampled tokens, and - A p of the others."""
        logps = fill_masked(logps, batch)
        return join_terms(batch, super().terms(mask_off_policy(batch), logps), logps.exp(), {})

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the policy gradient, its positive part weighed by the entropy of the row, and the SFT loss."""
        mean = fill_masked(entropy, batch).detach().sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True).clamp(min=1)
        raised = (batch.advantages > 0) & (batch.expert == 0)
        advantages = (self.positive * mean.exp() * batch.advantages).where(raised, batch.advantages)
        loss, stats = super().loss(replace(batch, advantages=advantages), logps, entropy)
        coefficients = self.sft * (-mean).exp() * batch.prepared
        stats["guidance/sft_weight"] = coefficients.sum()
        return loss - (coefficients * fill_masked(logps, batch)).sum(), stats
