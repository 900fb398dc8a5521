"""REINFORCE++ (arXiv 2501.03262): no group baseline; advantages are whitened over all tokens of the step.

R_t = sum over s >= t of discount^(s - t) r_s, with the outcome on the last token
A_t = (R_t - mean R) / sqrt(var R + 1e-8), over all tokens of the step
loss = - sum_t w_t min(A_t rho_t, A_t clip(rho_t, 1 - low, 1 + high))

With `kl_place: reward`, the token's KL is subtracted from every r_s, as in the paper. `kl` is 0 by default, so no
reference model is loaded unless it is set.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.regularizer import Regularizer


@dataclass(frozen=True)
class ReinforcePlusPlus(PolicyGradient):
    """Clipped policy gradient with whitened returns."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(estimator="returns", whiten=True)
    regularizer: Regularizer = Regularizer(kl_estimator="k1", kl_place="reward")
