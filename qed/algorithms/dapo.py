"""DAPO (arXiv 2503.14476): GRPO with four changes, each of which can be switched by itself.

Clip-higher: the ratio may grow to 1 + 0.28 (`clip_high`). Token mean: long answers are not muted (`average`). Dynamic
sampling: groups that are all right or all wrong, before any shaping, are dropped and sampling goes on until the step
is full (`dynamic_sampling`, `max_rounds`). Soft overlong punishment: the reward `overlong` is added to the prompt's own
(`data.reward`; whoever names another reward adds `overlong` to it), in place of which `mask_truncated` leaves
answers that were cut off out of the loss. There is no KL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from qed.algorithms.base import Average
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.selection import Selection
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Dapo(PolicyGradient):
    """GRPO that goes on sampling until every group can teach something."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    surrogate: Surrogate = Surrogate(clip_high=0.28)
    selection: Selection = Selection(dynamic_sampling=True)

    defaults: ClassVar[dict[str, Any]] = {"data.reward": ("auto", "overlong")}
