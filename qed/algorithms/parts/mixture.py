"""The advantages of groups in which some answers, or their beginnings, were given and not sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qed.algorithms.parts.crediting import is_counted
from qed.types import Advantage, Group

if TYPE_CHECKING:
    from torch import Tensor

Statistics = Literal["shared", "split"]


@dataclass(frozen=True)
class OffPolicyAdvantages:
    """How the advantages of given tokens and of the policy's own are told apart."""

    statistics: Statistics = "shared"
    """The baseline of a group: shared by all of its answers, or split, from those alone of which nothing was given."""
    given_weight: float = 1.0
    """Multiplies the advantages of given tokens."""
    own_weight: float = 1.0
    """Multiplies the advantages of sampled tokens."""
    given_advantage: float = 0.0
    """The advantage of given tokens whatever their answer earned, divided by the group's size; 0 takes the group's."""
    zero_truncated: bool = False
    """Answers that were cut off at max_tokens get the advantage 0; they count in the group's statistics."""

    def weigh(self, group: Group, advantages: Sequence[Advantage]) -> list[Advantage]:
        """A group's advantages with these weights; one number for an answer of which all tokens have the same."""
        return [
            self._weigh_token(advantage, rollout.off_policy, len(group), rollout.stop_reason == "length")
            for rollout, advantage in zip(group, advantages, strict=True)
        ]

    def _weigh_token(self, advantage: Advantage, given: Sequence[bool], size: int, cut: bool) -> Advantage:
        if cut and self.zero_truncated:
            return 0.0
        own = advantage if isinstance(advantage, tuple) else (advantage,) * len(given)
        constant = self.given_advantage / size
        values = tuple(
            (constant or self.given_weight * value) if is_given else self.own_weight * value
            for value, is_given in zip(own, given, strict=True)
        )
        return values[0] if len(set(values)) == 1 else values


def split_statistics(rewards: Tensor, own: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    """(r - mean) / (std + epsilon), with the mean and the deviation of the group's own answers, for all of them.

    Equal rewards have the deviation 1; with fewer than two own answers the mean is 0 and the deviation 1.

    Args:
        rewards: [G] float64.
        own: [G] bool, the answers of which nothing was given.
        normalize_std: whether to divide.
        epsilon: added to the deviation.
    """
    chosen = rewards[own]
    if len(chosen) < 2:
        return rewards / (1 + epsilon) if normalize_std else rewards
    equal = bool((chosen == chosen[0]).all())
    centred = rewards - (chosen[0] if equal else chosen.mean())
    if not normalize_std:
        return centred
    return centred / ((1.0 if equal else float(chosen.std())) + epsilon)


def split_group(group: Group, normalize_std: bool, epsilon: float) -> list[Advantage]:
    """The split advantages of a group; see `split`. What was not graded or has no reward stands outside and gets 0."""
    # Imported here: nothing else in this file needs torch, and the command line imports the file for `--help`.
    from torch import float64, tensor  # noqa: PLC0415

    rewards = tensor([rollout.reward for rollout in group], dtype=float64)
    graded = tensor([is_counted(rollout) for rollout in group])
    own = graded & tensor([rollout.is_on_policy for rollout in group])
    return list(split_statistics(rewards, own, normalize_std, epsilon).where(graded, 0.0).tolist())
