"""RL with an SFT loss, a baseline of LUFFY (arXiv 2504.14945): SFT on demonstrations, RL on sampled completions.

loss = - sft sum_t log pi(y_t | x, y_<t) / N over the N tokens of all completions that contain demonstration tokens
       + the policy gradient over the others, with advantages by the mean and the deviation of those others

Both averages are computed over all rows of the optimizer step, so their balance does not depend on the micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qed.algorithms.base import Average, StepContext, require
from qed.algorithms.parts import requirements, shaping
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.guidance import ExpertPrefix
from qed.algorithms.parts.mixture import split_group
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate, Terms, mask_off_policy
from qed.types import Advantage, Group, Groups, Problem, Request

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class RlSft(PolicyGradient):
    """Imitates demonstrations and trains its own completions by policy gradient."""

    average: Average = "constant"
    """How sampled answers are averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(clip_low=1.0, clip_high=math.inf)
    sft: float = 0.1
    """Weight of the SFT loss on answers with demonstration tokens, averaged over all of their tokens. The published
    runs have 1 with a policy gradient that is summed over 64 rows, which corresponds to about 0.1 with its mean."""
    guidance: ExpertPrefix = field(default_factory=ExpertPrefix)

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        requirements.require_split_statistics(self.advantage, self.regularizer)
        require(self.sft >= 0, "algorithm.sft must not be negative.")

    @property
    def guided(self) -> bool:
        """Whether the guidance settings use demonstrations."""
        return self.guidance.active

    def plan(self, problems: Sequence[Problem], group_size: int, context: StepContext) -> list[Request]:
        """Return requests whose first completions continue a demonstration."""
        return self.guidance.plan(super().plan(problems, group_size, context), context)

    def filter_groups(self, groups: Groups) -> list[Group]:
        """Drop complete demonstrations that the grader judges wrong."""
        return super().filter_groups(self.guidance.drop_wrong_traces(groups))

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Compute advantages with the statistics of the group's sampled completions."""
        settings = self.advantage
        return [split_group(group, settings.normalize_std, settings.std_epsilon) for group in groups]

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Compute the average over sampled completions, and a token mean over the imitated ones."""
        guided = batch.expert.any(1)
        sampled = (~guided).nonzero().flatten()
        imitated = batch.mask * guided[:, None]
        weights = self.sft * imitated / imitated.sum().clamp(min=1)
        if len(sampled):
            part = super().weights(batch.select(sampled), length)
            weights[sampled, : part.shape[1]] = part
        return weights

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return the rows with an advantage, and those that are imitated."""
        return super().has_gradient(batch) | (batch.expert.any(1) if self.sft else False)

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """Compute the surrogate of sampled completions, and - log pi of the imitated ones, which `loss` has marked."""
        logps = shaping.fill_masked(logps, batch)
        terms, stats = super().terms(mask_off_policy(batch), logps)
        return -logps.where(batch.expert.bool(), -terms), stats | {"guidance/token_share": batch.expert.sum()}

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss; imitated completions add nothing to the KL and to the entropy bonus."""
        return super().loss(_mark_rows(batch), logps, entropy)


def _mark_rows(batch: Batch) -> Batch:
    """Mark every token of a completion that contains demonstration tokens as one of them."""
    return replace(batch, expert=batch.mask * batch.expert.any(1, keepdim=True))
