"""ReLIFT (arXiv 2506.07527): RL interleaved with SFT on demonstrations of problems that no answer solved.

loss of the RL update = - sum_t w_t A rho_t over the sampled answers, with A = r - mean r
loss of the SFT update = - sum_t log pi(y_t | x, y_<t) / N over the N tokens of its demonstrations

If none of a problem's answers is correct, its demonstration waits in a buffer. Once `buffer` of them wait, the RL
update of the step is followed by one SFT update on the oldest; the others keep waiting. The paper uses 128 problems per
step and 128 demonstrations per SFT update. From the published code (TheRoadQaQ/ReLIFT, `relift/trainer.py`), qed takes
the order of updates, the buffer and the averages of the paper's settings (those of Dr. GRPO without a clip). The
published SFT update has a separate AdamW with the same learning rate; in qed both updates share one. The published code
checks neither length nor correctness of demonstrations; qed excludes and counts wrong ones and those longer than an
answer may be.
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
    from qed.rollout.replay import ReplayBuffer


@dataclass(frozen=True)
class Relift(PolicyGradient):
    """Trains on its own completions and, in separate updates, imitates demonstrations of unsolved problems."""

    average: Average = "constant"
    """How sampled answers are averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(clip_low=1.0, clip_high=math.inf)
    buffer: int = 0
    """Number of demonstrations to collect before an SFT update; 0 takes as many as a step has problems."""
    guidance: WholeDemonstrations = field(default_factory=WholeDemonstrations)

    imitates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(self.buffer >= 0, "algorithm.buffer must not be negative.")

    @property
    def needs_correctness(self) -> bool:
        """True, because it imitates if no completion is correct."""
        return True

    def filter_groups(self, groups: Groups) -> list[Group]:
        """Remove the demonstrations from the groups, because `extra_minibatches` trains them."""
        return super().filter_groups([[one for one in group if one.source != "expert"] for group in groups])

    def extra_minibatches(self, sampled: Groups, pool: ReplayBuffer, wanted: int) -> list[list[Rollout]]:
        """Buffer the demonstrations of unsolved problems; return the oldest once there are enough."""
        for group in self.guidance.drop_wrong_traces([each for each in sampled if is_unsolved(each)]):
            pool.waiting += [replace(one, advantage=0.0) for one in group if one.source == "expert"]
        size = self.buffer or wanted
        if len(pool.waiting) < size:
            return []
        oldest, pool.waiting = pool.waiting[:size], pool.waiting[size:]
        return [oldest]


def is_unsolved(group: Group) -> bool:
    """Whether a group has completions of the policy with a reward, none of which is correct."""
    own = [rollout for rollout in group if rollout.source == "policy" and rollout.has_reward]
    return bool(own) and not select_correct(own)
