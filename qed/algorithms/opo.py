"""OPO, on-policy RL with the optimal baseline: the baseline is the group's length-weighted mean reward.

A = r - sum_i l_i r_i / sum_i l_i, l_i the length of completion i in tokens
loss = - sum_t w_t A log pi(y_t | x, y_<t), exactly on-policy, with neither KL nor entropy bonus

The length approximates the squared norm of a completion's gradient; weighting by it minimises the variance.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Opo(PolicyGradient):
    """REINFORCE with the length-weighted mean as its baseline."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(estimator="opo")
    surrogate: Surrogate = Surrogate(kind="plain")
