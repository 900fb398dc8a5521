"""ReLIFT (arXiv 2506.07527): RL, interleaved with SFT on demonstrations of the problems that no answer solved.

loss of the RL update = - sum_t w_t A rho_t over the sampled answers, with A = r - mean r
loss of the SFT update = - sum_t log pi(y_t | x, y_<t) / N over the N tokens of the demonstrations that it takes

The demonstration of a problem none of whose answers is correct waits in a buffer. Once `buffer` of them wait, the RL
update of the step is followed by one SFT update on the oldest; the others wait on. The paper has 128 problems in a step
and 128 demonstrations in an SFT update. Of the published code (TheRoadQaQ/ReLIFT, `relift/trainer.py`) this follows
the order, the buffer and the averages of the settings of the paper, those of Dr. GRPO without a clip; its SFT update
has an AdamW of its own with the same learning rate, here both have one. It checks neither length nor correctness of
demonstrations; here wrong ones, and those longer than an answer may be, are left out and counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from qed.algorithms.base import Average, require, select_correct
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.guidance import WholeDemonstrations
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate
from qed.types import Group, Groups, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.rollout.replay import ReplayBuffer


@dataclass(frozen=True)
class Relift(PolicyGradient):
    """Trains its own completions, and imitates demonstrations of what it could not solve in updates between."""

    average: Average = "constant"
    """How sampled answers are averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(clip_low=1.0, clip_high=math.inf)
    buffer: int = 0
    """Number of demonstrations to collect before an SFT update; 0 takes as many as a step has problems."""
    guidance: WholeDemonstrations = field(default_factory=WholeDemonstrations)

    imitates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        require(self.buffer >= 0, "algorithm.buffer must not be negative.")

    @property
    def needs_correctness(self) -> bool:
        """It imitates where no completion is correct."""
        return True

    def filter_groups(self, groups: Groups) -> list[Group]:
        """Take the demonstrations out of the groups: their updates are `extra_minibatches`."""
        return super().filter_groups([[one for one in group if one.source != "expert"] for group in groups])

    def extra_minibatches(self, sampled: Groups, pool: ReplayBuffer, wanted: int) -> list[list[Rollout]]:
        """Let the demonstrations of unsolved problems wait; return the oldest once there are enough."""
        for group in self.guidance.drop_wrong_traces([each for each in sampled if is_unsolved(each)]):
            pool.waiting += [replace(one, advantage=0.0) for one in group if one.source == "expert"]
        size = self.buffer or wanted
        if len(pool.waiting) < size:
            return []
        oldest, pool.waiting = pool.waiting[:size], pool.waiting[size:]
        return [oldest]

    def weigh_imitated(self, mask: Tensor) -> Tensor:
        """Compute the token mean over all tokens of the update."""
        return mask / mask.sum().clamp(min=1)


def is_unsolved(group: Group) -> bool:
    """Whether the policy's completions in a group have rewards, and none of them is correct."""
    own = [rollout for rollout in group if rollout.source == "policy" and rollout.has_reward]
    return bool(own) and not select_correct(own)
