"""On-policy distillation: the policy answers, and a teacher gives its own next-token distribution at each token.

sampled:    the policy gradient with A_t = reward A - distil (log pi_old(y_t) - log pi_T(y_t))
otherwise:  loss = sum_t w_t distil D_t + reward times the policy gradient, D_t the divergence of the whole
            distributions: KL(pi || pi_T), KL(pi_T || pi), or the mixture of both

`sampled` is a single-sample estimate of the reverse KL, undiscounted: each token is credited only for itself, and the
expected gradient is that of the token's exact reverse KL (Agarwal et al., GKD, arXiv 2306.13649, section 3; Lu et al.,
"On-Policy Distillation", Thinking Machines 2025). The log-probs of both are at the sampling temperature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qed.algorithms.base import Average, require
from qed.algorithms.parts.distillation import (
    Distillation,
    add_opinions,
    compute_distillation,
    require_teacher_alone,
)
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.types import Advantage, Groups

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Opd(PolicyGradient):
    """Brings the policy closer to a teacher on the policy's own answers."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    teacher: str = ""
    """The teacher: the name or folder of a model with the policy's tokenizer, or the address of a server for one, such
    as http://127.0.0.1:8000."""
    teacher_model: str = ""
    """Name of the teacher's model, if its server serves several."""
    distillation: Distillation = field(default_factory=Distillation)

    def __post_init__(self) -> None:
        """Reject settings that a server does not support, and a teacher that moves."""
        super().__post_init__()
        require_teacher_alone(self.regularizer)
        require(
            not self._is_served or self.teacher_divergence is None,
            f"algorithm.divergence={self.distillation.divergence} compares whole distributions, but the server "
            f"{self.teacher} returns log-probs of single tokens. Set algorithm.divergence=sampled, or set "
            "algorithm.teacher to the folder of the model.",
        )
        require(
            self._is_served or not self.teacher_model,
            "algorithm.teacher_model names a model on a server, but algorithm.teacher is not an address.",
        )

    @property
    def _is_served(self) -> bool:
        return self.teacher.startswith(("http://", "https://"))

    @property
    def teacher_server(self) -> tuple[str, str]:
        """The teacher server's address, and the name of its model there; empty if the teacher runs in this process."""
        return (self.teacher, self.teacher_model) if self._is_served else ("", "")

    @property
    def reference(self) -> bool:
        """Whether the teacher is loaded as the reference model, because no server runs it."""
        return not self._is_served

    @property
    def reference_name(self) -> str:
        """The name or folder of the teacher; empty if a server runs it."""
        return "" if self._is_served else self.teacher

    @property
    def teacher_setting(self) -> str:
        """The setting that names the teacher."""
        return "algorithm.teacher"

    @property
    def scores_reference(self) -> bool:
        """Whether the sampled divergence or a KL to the teacher reads the teacher's log-probs of sampled tokens."""
        return not self._is_served and (self.distillation.by_sampled_tokens or self.regularizer.kl > 0)

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Compute the advantages of the reward, and with the sampled divergence add the teacher's log-ratios."""
        settings = self.distillation
        rewarded: list[list[Advantage]] = [[0.0] * len(group) for group in groups]
        if settings.reward:
            rewarded = super().credit(groups)
        return add_opinions(groups, rewarded, settings, lambda rollout: 0)

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return all rows if the divergence is over the vocabulary, otherwise those with an advantage."""
        return batch.mask.any(1) if self.teacher_divergence is not None else super().has_gradient(batch)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the policy gradient, plus the divergence to the teacher if it is over the vocabulary."""
        loss, stats = super().loss(batch, logps, entropy)
        term, measured = compute_distillation(batch, self.distillation, batch.mask)
        return loss if term is None else loss + term, stats | measured
