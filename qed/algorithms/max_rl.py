"""MaxRL (arXiv 2602.02710): rewards relative to the group's mean, so that hard problems get more weight.

A = (r - mean r) / mean r, 0 where the mean is not above 0
loss = - sum_t w_t A log pi(y_t | x, y_<t)

With rewards of 0 and 1 the mean is the share of correct completions, and the gradient approaches that of log
p(correct) as groups grow.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class MaxRl(PolicyGradient):
    """REINFORCE that maximises the log-likelihood of a correct completion."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(estimator="max_rl")
    surrogate: Surrogate = Surrogate(kind="plain")
