"""Prefix-RFT (arXiv 2507.01679): one answer of each group continues a prefix of a demonstration.

A = r - mean r over the group, including the continued answer
loss = - sum_t w_t min(A rho_t, A clip(rho_t, 1 - low, 1 + high)), over sampled tokens and over the prefix tokens with
the highest entropy

The prefix is trained as if the policy had written it, with the advantage of its answer, but only where the
policy is uncertain: on the `top_prefix` share of the step's prefix tokens with the highest entropy. Its ratio is to the
policy before the update. The token weights are those of Dr. GRPO over all tokens. The prefix is the first
floor(l |y|) tokens of a demonstration y, l ~ Uniform(low, 0.95), where low falls along half a cosine from 0.95 to 0.05
over the run. The authors' code ranks entropies within each micro-batch; qed ranks them over the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from qed.algorithms.base import Average, require
from qed.algorithms.parts import exploration
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.guidance import ExpertPrefix
from qed.algorithms.parts.losses import fill_old_logps
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.shaping import fill_masked
from qed.algorithms.parts.surrogates import Surrogate, Terms

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class PrefixRft(PolicyGradient):
    """Reinforces answers, one per group beginning with a prefix of a demonstration."""

    average: Average = "constant"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(clip_low=0.2, clip_high=0.2)
    top_prefix: float = 0.2
    """Share of the prefix tokens to train: those with the highest entropy; 1 trains all of them."""
    guidance: ExpertPrefix = field(default_factory=lambda: ExpertPrefix(strategy="cosine", least=0.05, most=0.95))

    # An untrained model cannot complete a demonstration, so at first it is given all of it.
    fresh_defaults: ClassVar[dict[str, Any]] = {**PolicyGradient.fresh_defaults, "algorithm.guidance.most": 1.0}

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(0 < self.top_prefix <= 1, "algorithm.top_prefix must lie in (0, 1].")

    @property
    def two_pass(self) -> bool:
        """True: the entropy quantile is taken over the prefix tokens of all rows."""
        return super().two_pass or self.top_prefix < 1

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """Among the prefix tokens, keep only the advantages of those with the highest entropy."""
        batch = super().prepare(batch, logps, entropy)
        if entropy is None or self.top_prefix == 1:
            return batch
        return exploration.keep_top_entropy(batch, entropy, self.top_prefix, among=batch.expert.bool())

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """Compute the surrogate of all tokens, treating the prefix as sampled by the policy before the update."""
        logps = fill_masked(logps, batch)
        old = fill_old_logps(fill_masked(batch.old_logps, batch), logps)
        # If prefix tokens were not scored, the column holds 0, and the current policy is used.
        old = logps.detach().where((batch.expert == 1) & (old == 0), old)
        given = batch.mask * batch.expert
        terms, stats = super().terms(replace(batch, old_logps=old), logps)
        return terms, stats | {"guidance/token_share": (given * (batch.advantages != 0)).sum()}
