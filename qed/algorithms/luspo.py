"""LUSPO (arXiv 2602.05261): GSPO with each row's loss multiplied by its length.

loss = - sum over rows and tokens of min(A s, A clip(s, 1 - low, 1 + high)) / rows, s the ratio of the row as in GSPO

GSPO's mean over a row's tokens gives a token of a long completion less weight. Multiplied by the length, it is the
row's sum, `average: sequence_sum`.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Luspo(PolicyGradient):
    """GSPO without its bias against long completions."""

    average: Average = "sequence_sum"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    surrogate: Surrogate = Surrogate(kind="gspo", clip_low=3e-4, clip_high=4e-4)
