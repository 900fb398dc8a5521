"""Advantages of groups in which some completions, or their prefixes, come from demonstrations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qed.algorithms.base import require
from qed.algorithms.parts.crediting import is_counted
from qed.types import Advantage, Group

if TYPE_CHECKING:
    from torch import Tensor

Statistics = Literal["shared", "split"]


@dataclass(frozen=True)
class OffPolicyAdvantages:
    """How the advantages of demonstration tokens differ from those of sampled tokens."""

    statistics: Statistics = "shared"
    """Baseline of a group: shared uses all of its answers; split uses only those that were sampled completely."""
    given_weight: float = 1.0
    """Multiplies the advantages of demonstration tokens."""
    own_weight: float = 1.0
    """Multiplies the advantages of sampled tokens."""
    given_advantage: float = 0.0
    """Fixed advantage of demonstration tokens, divided by the group's size; 0 uses the computed advantage."""
    zero_truncated: bool = False
    """Set the advantage of answers truncated at max_tokens to 0; they still count in the group's statistics."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        for name in ("given_weight", "own_weight", "given_advantage"):
            require(math.isfinite(getattr(self, name)), f"algorithm.mixture.{name} must be a finite number.")

    def weigh(self, group: Group, advantages: Sequence[Advantage]) -> list[Advantage]:
        """Weight a group's advantages; a completion with equal advantages on all tokens gets one number."""
        return [
            self._weigh_token(advantage, rollout.off_policy, len(group), rollout.stop_reason == "length")
            for rollout, advantage in zip(group, advantages, strict=True)
        ]

    def _weigh_token(self, advantage: Advantage, off_policy: Sequence[bool], size: int, truncated: bool) -> Advantage:
        if truncated and self.zero_truncated:
            return 0.0
        per_token = advantage if isinstance(advantage, tuple) else (advantage,) * len(off_policy)
        constant = self.given_advantage / size
        values = tuple(
            (constant or self.given_weight * value) if is_off_policy else self.own_weight * value
            for value, is_off_policy in zip(per_token, off_policy, strict=True)
        )
        return values[0] if len(set(values)) == 1 else values


def split_statistics(rewards: Tensor, sampled: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    """Compute (r - mean) / (std + epsilon) for a group, with mean and deviation over only its sampled completions.

    The deviation of equal rewards is 1; with fewer than two sampled completions the mean is 0 and the deviation 1.

    Args:
        rewards: [G] float64.
        sampled: [G] bool, whether the policy sampled the whole completion.
        normalize_std: whether to divide by the deviation.
        epsilon: added to the deviation.
    """
    chosen = rewards[sampled]
    if len(chosen) < 2:
        return rewards / (1 + epsilon) if normalize_std else rewards
    equal = bool((chosen == chosen[0]).all())
    centred = rewards - (chosen[0] if equal else chosen.mean())
    if not normalize_std:
        return centred
    return centred / ((1.0 if equal else float(chosen.std())) + epsilon)


def split_group(group: Group, normalize_std: bool, epsilon: float) -> list[Advantage]:
    """Compute a group's split advantages; a completion that was not graded or has no reward is excluded and gets 0."""
    # Imported here because nothing else in this file needs torch, and the command line imports it for `--help`.
    from torch import float64, tensor  # noqa: PLC0415

    rewards = tensor([rollout.reward for rollout in group], dtype=float64)
    graded = tensor([is_counted(rollout) for rollout in group])
    sampled = graded & tensor([rollout.is_on_policy for rollout in group])
    return list(split_statistics(rewards, sampled, normalize_std, epsilon).where(graded, 0.0).tolist())
