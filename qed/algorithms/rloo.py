"""RLOO (arXiv 2402.14740): the baseline of each completion is the mean reward of the others.

A = r - mean of the others = (r - mean r) G / (G - 1)
loss = - sum_t w_t A log pi(y_t | x, y_<t)

Every completion is weighted by its length, because its log-prob is the sum over its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Rloo(PolicyGradient):
    """REINFORCE with a baseline that does not depend on the completion itself."""

    average: Average = "sequence_sum"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(estimator="leave_one_out")
    surrogate: Surrogate = Surrogate(kind="plain")
