"""On-policy self-distillation (OPSD, arXiv 2601.18734): the teacher is the policy itself, shown the demonstration.

The policy answers the problem x, and the teacher reads the same answer y after a prompt that also contains the
demonstration y*. The policy learns the teacher's prediction at each token (equations 6 to 8, version 3):

loss = 1/|y| sum_t D(pi_T(. | x, y*, y_<t) || pi(. | x, y_<t)),  D = sum_v min(p_T(v) log(p_T(v) / p(v)), clip)

The paper freezes the teacher at the initial weights, uses the forward KL over the whole vocabulary (its first
version: the Jensen-Shannon divergence with beta 0.5), and clips each token of the vocabulary; its code and TRL clip at
0.05. SDFT (arXiv 2601.19897) is `teacher_weights=ema`, `divergence_clip=inf` and, as in its code, `skip_tokens=3`; its
theory uses the reverse KL, its runs the forward KL. The `opsd` of prime-rl is `teacher_weights=live`,
`divergence=sampled`. Problems without a demonstration are counted, and learn only from the reward, if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qed.algorithms.base import Average
from qed.algorithms.parts.distillation import (
    Distillation,
    add_opinions,
    compute_distillation,
    require_teacher_alone,
)
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.self_teacher import SelfTeacher, find_learning, weigh_learning
from qed.types import Advantage, Groups

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Opsd(PolicyGradient):
    """Brings the policy closer to itself given the demonstration, on the policy's own answers."""

    average: Average = "sequence"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    distillation: Distillation = field(
        default_factory=lambda: Distillation(divergence="forward_kl", divergence_clip=0.05)
    )
    self_teacher: SelfTeacher = field(default_factory=SelfTeacher)

    def __post_init__(self) -> None:
        """Reject out-of-range settings, and a reference model that moves independently of the teacher."""
        super().__post_init__()
        require_teacher_alone(self.regularizer)

    @property
    def guided(self) -> bool:
        """True: the teacher is shown demonstrations, so problems need one."""
        return True

    @property
    def reference(self) -> bool:
        """Whether the teacher's weights differ from the policy's; it is then loaded as the reference model."""
        return self.self_teacher.teacher_weights != "live"

    @property
    def reference_moves(self) -> tuple[int, float]:
        """The teacher's moves: with `ema` it follows the policy."""
        return self.self_teacher.moves

    @property
    def scores_reference(self) -> bool:
        """Whether the sampled divergence or a KL to the teacher reads the teacher's log-probs of sampled tokens."""
        return self.distillation.by_sampled_tokens or self.regularizer.kl > 0

    @property
    def teacher_wording(self) -> str:
        """Template of the teacher's prompt."""
        return self.self_teacher.wording

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Compute the advantages of the reward, and with the sampled divergence add the teacher's log-ratios."""
        settings = self.distillation
        rewarded = super().credit(groups) if settings.reward else [[0.0] * len(group) for group in groups]
        skip = self.self_teacher.skip_tokens
        return add_opinions(
            groups, rewarded, settings, lambda rollout: skip if rollout.teacher_prompt else len(rollout.output)
        )

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Compute the weights; without a reward, only over rows whose teacher was shown a demonstration."""
        if self.distillation.reward:
            return super().weights(batch, length)
        return weigh_learning(batch, lambda rows: super(Opsd, self).weights(rows, length))

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return rows with an advantage and, for a divergence over the vocabulary, those that learn from it."""
        live = super().has_gradient(batch)
        return (
            live
            if self.teacher_divergence is None
            else live | find_learning(batch, self.self_teacher.skip_tokens).any(1)
        )

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the policy gradient, plus the divergence to the teacher if it is over the vocabulary."""
        loss, stats = super().loss(batch, logps, entropy)
        learning = find_learning(batch, self.self_teacher.skip_tokens)
        term, measured = compute_distillation(batch, self.distillation, learning)
        return loss if term is None else loss + term, stats | measured
