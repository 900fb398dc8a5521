"""SRFT (arXiv 2506.19767): demonstrations are imitated and reinforced, sampled answers reinforced, weighted by entropy.

loss = - E 0.5 e^(-H) log pi(y*)                           over the demonstrations y* (equation 8)
       - E sum_t A p_t,  p_t = pi(y*_t | x, y*_<t)         over the demonstrations (equations 9 and 10)
       - E R log pi(y),  R = 0.1 e^H if right, else -1     over the sampled answers (equations 11 and 12)

E is `average`, over each kind of rows separately. A is the advantage within the group and its demonstration (equations
6 and 7); the probability under the demonstration's author counts as 1, and nothing is clipped. H is the entropy of the
policy, without a gradient. The paper does not say over which tokens; as in the script that accompanies HPT (arXiv
2509.04419), qed takes H as the mean over the row's tokens.

The authors' code differs from their paper in three ways, available as settings: imitation uses e^(+H) (`sft_slope` 1),
H is per token (`entropy_over: token`), and sampled answers use the group's advantage (`signs: false`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from qed.algorithms.base import Average, require
from qed.algorithms.parts.crediting import is_counted
from qed.algorithms.parts.guidance import WholeDemonstrations
from qed.algorithms.parts.imitation import find_imitated
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.shaping import fill_masked, join_terms
from qed.algorithms.parts.surrogates import Surrogate, Terms, mask_off_policy
from qed.types import Advantage, Groups, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Srft(PolicyGradient):
    """Imitates and reinforces demonstrations, and reinforces its own answers, in one step."""

    average: Average = "constant"
    """How demonstrations and sampled answers are averaged, each separately: over tokens, over sequences, by a constant
    length, or over sequences' sums."""
    surrogate: Surrogate = Surrogate(kind="plain")
    sft: float = 0.5
    """Weight of the demonstrations' likelihood at an entropy of 0."""
    sft_slope: float = -1.0
    """How that weight depends on the entropy H: it is multiplied by e^(slope H)."""
    positive: float = 0.1
    """Weight of right sampled answers at an entropy of 0; wrong ones have weight 1."""
    positive_slope: float = 1.0
    """How that weight depends on the entropy H: it is multiplied by e^(slope H)."""
    signs: bool = True
    """Reward sampled answers with 1 if right, else with -1; false: with their advantage in the group, where answers
    with a positive advantage get the weight of right ones."""
    entropy_over: Literal["row", "token"] = "row"
    """Entropy used in the weights: the mean over the tokens of the row, or that of each token."""
    guidance: WholeDemonstrations = field(default_factory=WholeDemonstrations)

    step_means: ClassVar[tuple[str, ...]] = ("guidance/sft_weight", "guidance/positive_weight")

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(0 <= self.sft < math.inf, "algorithm.sft must be a finite number, 0 or more.")
        for name in ("sft_slope", "positive_slope"):
            require(math.isfinite(getattr(self, name)), f"algorithm.{name} must be a finite number.")
        require(0 <= self.positive < math.inf, "algorithm.positive must be a finite number, 0 or more.")

    @property
    def needs_correctness(self) -> bool:
        """True with `signs`, which distinguish right answers from wrong ones."""
        return self.signs or super().needs_correctness

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Compute the advantages within each group; with `signs`, sampled answers get 1 or -1."""
        advantages = super().credit(groups)
        if not self.signs:
            return advantages
        pairs = (zip(group, values, strict=True) for group, values in zip(groups, advantages, strict=True))
        return [[_sign(rollout) if rollout.is_on_policy else value for rollout, value in group] for group in pairs]

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Compute the token weights of rows with demonstration tokens and of the others, each averaged separately."""
        imitated, weights = find_imitated(batch), batch.mask * 0
        for kind in (imitated, ~imitated):
            rows = kind.nonzero().flatten()
            if len(rows):
                part = super().weights(batch.select(rows), length)
                weights[rows, : part.shape[1]] = part
        return weights

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """Compute the metrics' token means over demonstrations and over answers with a positive advantage."""
        batch = super().prepare(batch, logps, entropy)
        given, positive = batch.mask * batch.expert, batch.mask * _find_positive(batch)
        means = given / given.sum().clamp(min=1) + positive / positive.sum().clamp(min=1)
        return replace(batch, prepared=means)

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return rows with an advantage, and the demonstrations."""
        live = super().has_gradient(batch)
        return live | find_imitated(batch) if self.sft else live

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """Compute the surrogate of sampled tokens, and - A p of demonstration tokens."""
        logps = fill_masked(logps, batch)
        return join_terms(batch, super().terms(mask_off_policy(batch), logps), logps.exp(), {})

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the policy gradient, with its positive part weighted by entropy, and the weighted likelihood."""
        level = fill_masked(entropy, batch).detach()
        if self.entropy_over == "row":
            level = (level.sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True).clamp(min=1)).expand_as(level)
        positive, given = _find_positive(batch), batch.expert.bool() & batch.mask.bool()
        raised = self.positive * (self.positive_slope * level).exp()
        copied = self.sft * (self.sft_slope * level).exp()
        advantages = (raised * batch.advantages).where(positive, batch.advantages)
        loss, stats = super().loss(replace(batch, advantages=advantages), logps, entropy)
        stats["guidance/sft_weight"] = (batch.prepared * copied)[given].sum()
        stats["guidance/positive_weight"] = (batch.prepared * raised)[positive].sum()
        return loss - (batch.weights * copied * fill_masked(logps, batch))[given].sum(), stats


def _sign(rollout: Rollout) -> float:
    """Return 1 for a right answer, -1 for any other, and 0 for one excluded from statistics."""
    if not is_counted(rollout) or rollout.grade is None:
        return 0.0
    return 1.0 if rollout.grade.correct else -1.0


def _find_positive(batch: Batch) -> Tensor:
    """Return the sampled tokens with a positive advantage, [B, T] bool."""
    return (batch.advantages > 0) & (batch.expert == 0) & (batch.mask != 0)
