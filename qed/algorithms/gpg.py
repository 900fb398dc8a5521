"""GPG, group policy gradient: the plain policy gradient, scaled up when few completions of a step have a reward.

A = (r - mean r) B / (number of nonzero rewards in the step), B the number of completions in the step; as in verl
loss = - sum_t w_t A log pi(y_t | x, y_<t)
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Gpg(PolicyGradient):
    """The policy gradient without ratio, reference model or standard deviation."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(estimator="gpg")
    surrogate: Surrogate = Surrogate(kind="plain")
