"""On-policy distillation: the policy answers, and a teacher says token by token how it would have gone on.

sampled:    the policy gradient with A_t = reward A - distil (log pi_old(y_t) - log pi_T(y_t))
otherwise:  loss = sum_t w_t distil D_t + reward times the policy gradient, D_t the divergence of the whole
            distributions: KL(pi || pi_T), KL(pi_T || pi), or the mixture of both

Sampled is the reverse KL by one sample, without a discount: each token is paid for itself alone, and the gradient's
expectation is that of the exact reverse KL of the token (Agarwal et al., GKD, arXiv 2306.13649, section 3; Lu et al.,
"On-Policy Distillation", Thinking Machines 2025). The log-probs of both are at the temperature of sampling.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qed.algorithms.base import Average
from qed.algorithms.parts.distillation import Distillation
from qed.algorithms.parts.losses import mask_values
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.types import Advantage, Groups, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Opd(PolicyGradient):
    """Brings the policy closer to a teacher on the policy's own answers."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    distillation: Distillation = field(default_factory=Distillation)

    @property
    def reference(self) -> bool:
        """The teacher is loaded in the place of the reference model."""
        return True

    @property
    def reference_name(self) -> str:
        """The name or folder of the teacher."""
        return self.distillation.teacher

    @property
    def teacher_setting(self) -> str:
        """The setting that names the teacher."""
        return "algorithm.teacher"

    @property
    def scores_reference(self) -> bool:
        """The sampled divergence reads the teacher's log-probs of sampled tokens, and so does a KL, which is to it."""
        return self.distillation.by_sampled_tokens or self.regularizer.kl > 0

    @property
    def scored_before_credit(self) -> bool:
        """The sampled divergence is part of the advantages."""
        return self.distillation.by_sampled_tokens or super().scored_before_credit

    @property
    def teacher_beta(self) -> float | None:
        """The beta of the divergence over the whole vocabulary."""
        return self.distillation.mixture

    def check(self, group_size: int) -> None:
        """Accept groups of one answer where no reward compares answers."""
        if self.distillation.reward:
            super().check(group_size)

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Compute the advantages of the reward, and add the teacher's opinion of each token where it is sampled."""
        settings = self.distillation
        rewarded: list[list[Advantage]] = [[0.0] * len(group) for group in groups]
        if settings.reward:
            rewarded = super().credit(groups)
        return [
            [self._add_teacher(rollout, value) for rollout, value in zip(group, advantages, strict=True)]
            for group, advantages in zip(groups, rewarded, strict=True)
        ]

    def _add_teacher(self, rollout: Rollout, advantage: Advantage) -> Advantage:
        settings = self.distillation
        values = advantage if isinstance(advantage, tuple) else (advantage,) * len(rollout.output)
        paid = [settings.reward * value for value in values]
        if settings.by_sampled_tokens and rollout.old_logps is not None and rollout.ref_logps is not None:
            gained = [ref - old for ref, old in zip(rollout.ref_logps, rollout.old_logps, strict=True)]
            paid = [value + settings.distil * gain for value, gain in zip(paid, gained, strict=True)]
        return paid[0] if len(set(paid)) == 1 else tuple(paid)

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return every row where the divergence is over the vocabulary; else those with an advantage."""
        return batch.mask.any(1) if self.teacher_beta is not None else super().has_gradient(batch)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the policy gradient, plus the divergence to the teacher where it is over the vocabulary."""
        loss, stats = super().loss(batch, logps, entropy)
        if batch.divergence is None:
            difference = mask_values(batch.old_logps - batch.ref_logps, batch.mask)
            return loss, stats | ({"distillation/divergence": difference.sum()} if self.scored_before_credit else {})
        stats["distillation/divergence"] = batch.divergence.detach().sum()
        return loss + self.distillation.distil * (batch.weights * batch.divergence).sum(), stats
