"""RLOO (arXiv 2402.14740): the mean reward of the other answers is each answer's baseline.

A = r - mean of the others = (r - mean r) G / (G - 1)
loss = - sum_t w_t A log pi(y_t | x, y_<t)

Every answer weighs by its number of tokens, as its log-prob is their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Rloo(PolicyGradient):
    """REINFORCE with a baseline that does not depend on the answer itself."""

    average: Average = "sequence_sum"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(estimator="leave_one_out")
    surrogate: Surrogate = Surrogate(kind="plain")
