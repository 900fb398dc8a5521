"""RL with an SFT loss, as LUFFY (arXiv 2504.14945) compares with: given answers are imitated, own ones reinforced.

loss = - sft sum_t log pi(y_t | x, y_<t) / N over the N tokens of all answers of which something was given
       + the policy gradient over the others, with the mean and the deviation of those others for their advantages

Both averages are fixed over all rows of the optimizer step, so their balance does not depend on how rows are cut.
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
from qed.algorithms.parts.surrogates import Surrogate, Terms, mask_given
from qed.types import Advantage, Group, Groups, Problem, Request

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class RlSft(PolicyGradient):
    """Imitates written answers while it reinforces its own."""

    average: Average = "constant"
    """How own answers are averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(clip_low=1.0, clip_high=math.inf)
    sft: float = 0.1
    """Weight of the imitation of answers of which something was given, averaged over all of their tokens. The published
    runs have 1 beside a policy gradient that is summed over 64 rows, which is about 0.1 beside its mean."""
    guidance: ExpertPrefix = field(default_factory=ExpertPrefix)

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        requirements.require_split_statistics(self.advantage, self.regularizer)
        require(self.sft >= 0, "algorithm.sft must not be negative.")

    @property
    def guided(self) -> bool:
        """As the guidance is set."""
        return self.guidance.active

    def plan(self, problems: Sequence[Problem], group_size: int, context: StepContext) -> list[Request]:
        """The first answers of each group go on from a written one."""
        return self.guidance.plan(super().plan(problems, group_size, context), context)

    def filter_groups(self, groups: Groups) -> list[Group]:
        """Without the written answers that the grader found wrong."""
        return super().filter_groups(self.guidance.drop_wrong_traces(groups))

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Advantages by the statistics of the group's own answers."""
        rule = self.advantage
        return [split_group(group, rule.normalize_std, rule.std_epsilon) for group in groups]

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Own answers averaged among themselves, the others by one mean over all of their tokens."""
        guided = batch.expert.any(1)
        own = (~guided).nonzero().flatten()
        imitated = batch.mask * guided[:, None]
        weights = self.sft * imitated / imitated.sum().clamp(min=1)
        if len(own):
            part = super().weights(batch.select(own), length)
            weights[own, : part.shape[1]] = part
        return weights

    def has_gradient(self, batch: Batch) -> Tensor:
        """What is imitated has a gradient whatever it earned."""
        return super().has_gradient(batch) | (batch.expert.any(1) if self.sft else False)

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """The surrogate of own answers, - log pi of the others, all of whose tokens `loss` has marked as given."""
        logps = shaping.fill_masked(logps, batch)
        terms, stats = super().terms(mask_given(batch), logps)
        return -logps.where(batch.expert.bool(), -terms), stats | {"guidance/token_share": batch.expert.sum()}

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """As the policy gradient's; imitated answers add nothing to the KL and to the entropy bonus."""
        return super().loss(_mark_rows(batch), logps, entropy)


def _mark_rows(batch: Batch) -> Batch:
    """Every token of an answer of which something was given counts as given."""
    return replace(batch, expert=batch.mask * batch.expert.any(1, keepdim=True))
