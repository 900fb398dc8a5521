"""ReMax: the reward of the greedy completion is the baseline.

A = r - r(greedy), loss = - sum_t w_t A log pi(y_t | x, y_<t)

Every problem gets one more completion, by greedy decoding. It is graded and recorded, but not trained on and not part
of any statistic. If it cannot be graded, its problem's advantages are 0 in that step. `sampling.group_size: 1` is the
original; more completions share the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Remax(PolicyGradient):
    """REINFORCE with the reward of the greedy completion as its baseline."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(estimator="remax")
    surrogate: Surrogate = Surrogate(kind="plain")
