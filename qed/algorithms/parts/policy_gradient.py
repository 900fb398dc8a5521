"""What the online family shares: an advantage estimator, a surrogate, an average, a KL and an entropy bonus.

A paper is a file that sets these; each can be set by itself wherever the mathematics allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qed.algorithms.base import Algorithm, Average, require
from qed.algorithms.parts import estimators, surrogates
from qed.algorithms.parts.estimators import Estimator
from qed.algorithms.parts.surrogates import Surrogate

if TYPE_CHECKING:
    from torch import Tensor

    from qed.batch import Batch


@dataclass(frozen=True)
class PolicyGradient(Algorithm):
    """Raises the probability of tokens by their advantage."""

    average: Average = "sequence"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    estimator: Estimator = "group"
    """How rewards become advantages."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    std_epsilon: float = 1e-6
    """Added to the standard deviation."""
    surrogate: Surrogate = "clip"
    """What is minimised for a token of a known advantage."""
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
        super().__post_init__()
        require(0 <= self.clip_low <= 1, "algorithm.clip_low must lie in [0, 1].")
        require(self.clip_high >= 0, "algorithm.clip_high must not be negative.")
        require(self.std_epsilon >= 0, "algorithm.std_epsilon must not be negative.")
        require(self.kl >= 0, "algorithm.kl must not be negative.")

    @property
    def reference(self) -> bool:
        """A reference model is needed for the KL alone."""
        return self.kl > 0

    def advantages(self, rewards: Tensor) -> Tensor:
        """The estimator's advantages of one group."""
        return rewards if self.estimator == "none" else estimators.group(rewards, self.normalize_std, self.std_epsilon)

    def live(self, batch: Batch) -> Tensor:
        """Rows with an advantage; every row as soon as KL or entropy has a weight."""
        return super().live(batch) if self.kl == 0 and self.entropy == 0 else batch.mask.any(1)

    def terms(self, batch: Batch, logps: Tensor) -> surrogates.Terms:
        """What each token adds to the policy loss, [B, T], before it is weighted, and sums for the metrics."""
        if self.surrogate == "plain":
            return surrogates.plain(batch, logps)
        return surrogates.clip(batch, logps, self.clip_low, self.clip_high)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The surrogate, with the KL and the entropy where they have a weight, all averaged by the same weights."""
        terms, stats = self.terms(batch, logps)
        loss = (batch.weights * terms).sum()
        if self.kl:
            difference = (batch.ref_logps - logps) * batch.mask
            k3 = difference.exp() - difference - 1
            loss = loss + self.kl * (batch.weights * k3).sum()
            stats["kl/ref"] = k3.detach().sum()
        if self.entropy:
            loss = loss - self.entropy * (batch.weights * entropy).sum()
        return loss, stats
