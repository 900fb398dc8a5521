"""IPO (INTELLECT Policy Optimization), prime-rl's loss: tokens whose probability has moved too far are dropped.

rho_t = pi / pi_sampled; loss = - sum_t w_t (A rho_t [kept]) + square w_t (log rho_t)^2, where tokens are kept if
-low <= pi - pi_sampled <= high

This is DPPO (arXiv 2602.04879) with a mask on both sides, regardless of the advantage's sign. The bounds are prime-rl's
`eps`, and `dppo_square` its `kl_tau`. The preference loss of the same name is `qed dpo --algorithm.losses ipo`.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Ipo(PolicyGradient):
    """The policy gradient without the tokens whose probability has moved too far."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(kind="ipo", clip_low=0.3, clip_high=0.3)
