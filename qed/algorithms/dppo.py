"""DPPO (arXiv 2602.04879), as prime-rl has it: a trust region in probabilities, seen from the sampler.

rho_t = pi / pi_sampled; loss = - sum_t w_t (A rho_t [kept]) + square w_t (log rho_t)^2, kept but for tokens with
pi - pi_sampled > high where A > 0, or < -low where A <= 0

A ratio is large for rare tokens long before their probability has moved; a difference of probabilities is not. There
is no old policy: what the sampler said is compared with, however old it is, so no correction is needed besides.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Dppo(PolicyGradient):
    """The policy gradient within a bound on how far a token's probability may move."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(kind="dppo")
