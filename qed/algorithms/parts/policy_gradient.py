"""What the online family shares: an advantage estimator, a surrogate, an average, a KL and an entropy bonus.

A paper is a file that sets these; each can be set by itself wherever the mathematics allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from qed.algorithms.base import Algorithm, Average, require
from qed.algorithms.parts import corrections, estimators, surrogates
from qed.algorithms.parts.corrections import Correction, Rejection
from qed.algorithms.parts.estimators import Estimator
from qed.algorithms.parts.losses import CispoClip
from qed.algorithms.parts.scales import Scale, factor
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
    """The ratio is clipped below at 1 - clip_low; in gmpo its logarithm, in dppo the probability's change."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high; in gmpo its logarithm, in dppo the probability's change."""
    clip_dual: float = 0.0
    """For a negative advantage A the loss is at most -A times this (dual clip; verl: 3); 0 does not bound it."""
    ratio_clamp: float = 0.0
    """Log-ratios are kept within plus or minus this many nats (verl and OpenRLHF: 20); 0 leaves them as they are."""
    cispo_clip: CispoClip = "both"
    """Which side cispo clips: both, only above at 1 + clip_high, or as TRL only above at clip_high itself."""
    sapo_temperatures: tuple[float, float] = (1.0, 1.05)
    """How fast sapo's gate closes, for positive advantages and for the others."""
    vespo_shape: tuple[float, float, float, float] = (2.0, 3.0, 3.0, 2.0)
    """vespo's k and lambda for advantages of 0 or more, then for negative ones."""
    dppo_square: float = 1e-3
    """Weight of dppo's squared log-ratio to the sampler, on all tokens."""
    correction: Correction = "none"
    """What exp(old - sampled) does to the policy loss: weigh it, bounded; bypass: the ratio is to the sampler."""
    correction_low: float = 0.0
    """The smallest weight of a correction."""
    correction_high: float = 2.0
    """The largest weight of a correction."""
    correction_normalize: bool = False
    """Divide a correction's weights by their mean over the whole step."""
    rejection: Rejection = "none"
    """Drop tokens or rows by a measure of log(old / sampled): k1, k2 or k3 of a token, or a row's sum, mean or max."""
    rejection_low: float = 0.5
    """The smallest sampled / old that k1 keeps."""
    rejection_high: float = 2.0
    """The largest sampled / old that k1 keeps; the largest k2 or k3."""
    offpolicy_limit: float = 0.0
    """Drop rows of negative advantage whose mean of sampled - new log-probs is above this; 0 drops none."""
    scale: Scale = "qed"
    """Multiply the loss by a constant, so that it is as large as another library's with the same average."""
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
        self._check_surrogate()

    def _check_surrogate(self) -> None:
        require(self.clip_dual == 0 or self.clip_dual > 1, "algorithm.clip_dual must be 0, or above 1.")
        require(self.ratio_clamp >= 0, "algorithm.ratio_clamp must not be negative.")
        require(min(self.sapo_temperatures) > 0, "algorithm.sapo_temperatures must both be above 0.")
        require(min(self.vespo_shape) > 0, "algorithm.vespo_shape must hold numbers above 0.")
        require(self.dppo_square >= 0, "algorithm.dppo_square must not be negative.")
        require(
            self.surrogate != "dppo" or self.correction in ("none", "bypass"),
            "algorithm.correction would count the sampler's log-probs twice: the ratio of dppo is to them already.",
        )
        require(
            0 <= self.correction_low <= self.correction_high and self.correction_high > 0,
            "algorithm.correction_low must lie in [0, algorithm.correction_high].",
        )
        # k2 and k3 have no lower bound.
        lowest = self.rejection_low if self.rejection.endswith("k1") else 0.0
        require(
            0 <= lowest <= self.rejection_high and self.rejection_high > 0,
            "algorithm.rejection_low must lie in [0, algorithm.rejection_high].",
        )
        require(self.offpolicy_limit >= 0, "algorithm.offpolicy_limit must not be negative.")

    @property
    def reference(self) -> bool:
        """A reference model is needed for the KL alone."""
        return self.kl > 0

    @property
    def rescored(self) -> bool:
        """A correction compares the sampler's log-probs with the learner's own; a bypass wants the sampler's alone."""
        return self.correction not in ("none", "bypass") or self.rejection != "none"

    def weights(self, batch: Batch, length: int) -> Tensor:
        """The average's weights, times the constant of the `scale`."""
        return super().weights(batch, length) * factor(self.scale, self.average, len(batch))

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """The rows as corrected for what sampled them."""
        return corrections.corrected(batch, self)

    def measured(self, batch: Batch) -> dict[str, float]:
        """What the correction meets, if there is one."""
        return corrections.measured(batch, self) if self.rescored else {}

    def advantages(self, rewards: Tensor) -> Tensor:
        """The estimator's advantages of one group."""
        return rewards if self.estimator == "none" else estimators.group(rewards, self.normalize_std, self.std_epsilon)

    def live(self, batch: Batch) -> Tensor:
        """Rows with an advantage; every row as soon as KL or entropy has a weight."""
        pulled = self.surrogate == "dppo" and self.dppo_square > 0
        return super().live(batch) if self.kl == 0 and self.entropy == 0 and not pulled else batch.mask.any(1)

    def terms(self, batch: Batch, logps: Tensor) -> surrogates.Terms:
        """What each token adds to the policy loss, [B, T], before it is weighted, and sums for the metrics."""
        if self.offpolicy_limit:
            written, limit = surrogates.sampled(batch), self.offpolicy_limit
            kept = corrections.on_policy_rows(logps, batch.sampled_logps, batch.advantages, written, limit)
            batch = replace(batch, advantages=batch.advantages * kept)
        return surrogates.terms(batch, logps, self)

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
