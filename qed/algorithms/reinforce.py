"""REINFORCE (Williams 1992), with the group's mean reward as its baseline, or without a baseline.

loss = - sum_t w_t A log pi(y_t | x, y_<t), A = r - mean r, or r with `estimator: none`
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Reinforce(PolicyGradient):
    """The plain policy gradient."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(kind="plain")
