"""DAPO (arXiv 2503.14476): GRPO with four changes, each with its own setting.

Clip-higher: the ratio may grow to 1 + 0.28 (`clip_high`). Token mean: long completions keep their full weight
(`average`). Dynamic sampling: groups that are all correct or all wrong (before reward shaping) are dropped, and
sampling continues until the step is full (`dynamic_sampling`, `max_rounds`). Soft overlong punishment: the reward
`overlong` is added to the reward of the prompt (`data.reward`; if you set another reward, add `overlong` to it).
Alternatively, `mask_truncated` excludes truncated completions from the loss. There is no KL.
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
    """GRPO with clip-higher, the token mean, dynamic sampling and the overlong punishment."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    surrogate: Surrogate = Surrogate(clip_high=0.28)
    selection: Selection = Selection(dynamic_sampling=True)

    defaults: ClassVar[dict[str, Any]] = {"data.reward": ("auto", "overlong")}
