"""VESPO (arXiv 2602.10693): a smooth weight from the whole sequence's ratio instead of a clip.

w = product of the row's rho_t; phi = exp(lambda + k log w - lambda w), without a gradient;
loss = - sum_t w_t phi A log pi(y_t | x, y_<t), (k, lambda) = (2, 3) for A >= 0 and (3, 2) for A < 0

phi is 1 at w = 1 and falls to 0 on both sides. The token mean is the one of TRL.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Vespo(PolicyGradient):
    """REINFORCE with a weight that decays as the ratio of a sequence leaves 1."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    surrogate: Surrogate = Surrogate(kind="vespo")
