"""CISPO (MiniMax-M1, arXiv 2506.13585): the importance weight is clipped, not the token.

loss = - sum_t w_t sg(clip(rho_t)) A log pi(y_t | x, y_<t), sg(x) is x without its gradient

A clipped token keeps its gradient. Libraries clip differently, which `cispo_clip` selects: `above` at 1 + clip_high, as
by default and in open-instruct; `both` sides (verl); `trl` at clip_high itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import Average
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Cispo(PolicyGradient):
    """REINFORCE with a bounded importance weight."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    surrogate: Surrogate = Surrogate(kind="cispo", cispo_clip="above", clip_high=4.0)
