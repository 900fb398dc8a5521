"""Dr. GRPO (arXiv 2503.20783): GRPO without its two biases.

A = r - mean r: no division by the standard deviation, which would favour very easy and very hard problems.
loss = sum over rows and tokens / (rows x generation budget): a constant, so that long wrong completions are not
favoured.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class DrGrpo(PolicyGradient):
    """GRPO with centred rewards and a constant divisor for the length."""

    average: Average = "constant"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
