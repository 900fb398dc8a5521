"""REINFORCE++ (arXiv 2501.03262): no baseline of the group, but advantages whitened over all tokens of the step.

R_t = sum over s >= t of discount^(s - t) r_s, with the outcome on the last token
A_t = (R_t - mean R) / sqrt(var R + 1e-8), over all tokens of the step
loss = - sum_t w_t min(A_t rho_t, A_t clip(rho_t, 1 - low, 1 + high))

With `kl_place: reward` every r_s has a KL taken off, as in the paper; `kl` is 0 by default, so that no reference model
is loaded unasked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.algorithms.base import Average
from qed.algorithms.parts.divergences import Divergence
from qed.algorithms.parts.estimators import Estimator
from qed.algorithms.parts.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class ReinforcePlusPlus(PolicyGradient):
    """Whitened returns and the clipped ratio."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    estimator: Estimator = "returns"
    """How rewards become advantages."""
    whiten: bool = True
    """Give the advantages of all tokens of the step the mean 0 and the variance 1."""
    kl_estimator: Divergence = "k1"
    """How a token's KL is estimated; with a plus the value is that estimator's and the gradient that of k2."""
    kl_place: Literal["loss", "reward"] = "reward"
    """Whether the KL is a term of the loss, or is taken off the reward of every token before the advantages."""
