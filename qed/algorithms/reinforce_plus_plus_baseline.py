"""REINFORCE++-baseline (arXiv 2501.03262): the group's mean is the baseline, the step's standard deviation the scale.

A = (r - mean r), then (A - mean A) / sqrt(var A + 1e-8) over all tokens of the step
loss = - sum_t w_t min(A rho_t, A clip(rho_t, 1 - low, 1 + high)) + kl k2_t

Longer completions have more tokens, so the second mean is not 0, and even a group of equal rewards gets an advantage.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.regularizer import Regularizer


@dataclass(frozen=True)
class ReinforcePlusPlusBaseline(PolicyGradient):
    """Clipped policy gradient with centred rewards, whitened over the step."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False, whiten=True)
    regularizer: Regularizer = Regularizer(kl_estimator="k2")
