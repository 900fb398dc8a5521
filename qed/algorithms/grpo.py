"""Group relative policy optimisation (DeepSeekMath, arXiv 2402.03300): the group is its own baseline.

A = (r - mean r) / (std r + eps), std with n - 1
loss = - sum_t w_t min(A rho_t, A clip(rho_t, 1 - low, 1 + high)) + kl k3_t - entropy H_t, rho_t = exp(log pi - log
pi_old)

k3 = exp(ref - log pi) - (ref - log pi) - 1 is the low-variance estimator of the KL to the reference model. KL and
entropy are averaged by the same weights as the policy loss, so that their coefficients do not change meaning with the
batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qed.algorithms.base import Algorithm, Average, all_equal, require

if TYPE_CHECKING:
    from torch import Tensor

    from qed.batch import Batch


@dataclass(frozen=True)
class Grpo(Algorithm):
    """The group's statistics normalise the rewards, the ratio is clipped."""

    average: Average = "sequence"
    """How the loss is averaged: over tokens, over sequences, or by a constant length."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    std_epsilon: float = 1e-6
    """Added to the standard deviation."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    kl: float = 0.0
    """Weight of the KL to the reference model; 0 loads none."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""

    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    def __post_init__(self) -> None:
        """Refuse numbers that no run can mean."""
        require(0 <= self.clip_low <= 1, "algorithm.clip_low must lie in [0, 1].")
        require(self.clip_high >= 0, "algorithm.clip_high must not be negative.")
        require(self.std_epsilon >= 0, "algorithm.std_epsilon must not be negative.")
        require(self.kl >= 0, "algorithm.kl must not be negative.")

    @property
    def reference(self) -> bool:
        """A reference model is needed for the KL alone."""
        return self.kl > 0

    def advantages(self, rewards: Tensor) -> Tensor:
        """Centred rewards, divided by the group's deviation; exactly 0 in a group of equal rewards."""
        if all_equal(rewards):
            return rewards * 0
        centred = rewards - rewards.mean()
        return centred / (rewards.std() + self.std_epsilon) if self.normalize_std else centred

    def live(self, batch: Batch) -> Tensor:
        """Rows with an advantage; every row as soon as KL or entropy has a weight."""
        return batch.advantages != 0 if self.kl == 0 and self.entropy == 0 else batch.mask.any(1)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped surrogate, with the KL and the entropy where they have a weight."""
        # Masked positions hold zeros in both columns; the mask keeps whatever they might hold out of the exponential.
        log_ratio = (logps - batch.old_logps) * batch.mask
        ratio = log_ratio.exp()
        advantages = batch.advantages[:, None]
        free, clipped = advantages * ratio, advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = -(batch.weights * free.minimum(clipped)).sum()
        stats = {
            "clip/low": ((clipped < free) & (advantages < 0) & batch.mask.bool()).sum(),
            "clip/high": ((clipped < free) & (advantages > 0) & batch.mask.bool()).sum(),
            "kl/old": -(log_ratio.detach()).sum(),
        }
        if self.kl:
            difference = (batch.ref_logps - logps) * batch.mask
            k3 = difference.exp() - difference - 1
            loss = loss + self.kl * (batch.weights * k3).sum()
            stats["kl/ref"] = k3.detach().sum()
        if self.entropy:
            loss = loss - self.entropy * (batch.weights * entropy).sum()
        return loss, stats
