"""GPG, group policy gradient: the plain policy gradient, made larger where few answers of the step earn anything.

A = (r - mean r) B / (the rewards of the step that are not 0), B the answers of the step; as verl computes it
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
    """Neither ratio nor reference nor deviation."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(estimator="gpg")
    surrogate: Surrogate = Surrogate(kind="plain")
