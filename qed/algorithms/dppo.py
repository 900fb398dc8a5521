"""DPPO (arXiv 2602.04879), as implemented in prime-rl: a trust region in probabilities, relative to the sampler.

rho_t = pi / pi_sampled; loss = - sum_t w_t (A rho_t [kept]) + square w_t (log rho_t)^2, where tokens are kept unless
pi - pi_sampled > high with A > 0, or < -low with A <= 0

The ratio of a rare token grows large long before its probability has moved; a difference of probabilities does not.
There is no old policy: the policy is compared with the sampler's log-probs, even stale ones; no correction is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Dppo(PolicyGradient):
    """The policy gradient with a bound on how far a token's probability may move."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(kind="dppo")
