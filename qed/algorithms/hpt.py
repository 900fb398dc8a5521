"""HPT, hybrid post-training (arXiv 2509.04419): a problem is imitated or reinforced, by its share of right answers.

P = the share of the problem's sampled answers that are right
loss = - sft sum_t log pi(y*_t | x, y*_<t) / N over the N tokens of the demonstrations of problems with P <= gate
       + the policy gradient over the sampled answers of the other problems

The paper weights the two losses of a problem by alpha and beta, one of which is 0 and the other 1 (algorithm 1). As in
its code, each loss is averaged separately over its own problems. A problem without a demonstration is always
reinforced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from qed.algorithms.base import Average, require, select_correct
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.guidance import WholeDemonstrations
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate
from qed.types import Group, Groups, Rollout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Hpt(PolicyGradient):
    """Imitates the demonstrations of problems that the policy fails, and reinforces its answers to the others."""

    average: Average = "constant"
    """How sampled answers are averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    surrogate: Surrogate = Surrogate(clip_low=1.0, clip_high=math.inf)
    gate: float = 0.0
    """Imitate the demonstrations of a problem if at most this share of its sampled answers is right; the paper uses 0
    for Qwen models and 0.25 (2 of 8) for Llama models."""
    sft: float = 0.1
    """Weight of the SFT loss, averaged over all demonstration tokens. The published runs use 1 with a policy gradient
    summed over 64 rows, which corresponds to about 0.1 with the mean."""
    guidance: WholeDemonstrations = field(default_factory=WholeDemonstrations)

    imitates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(0 <= self.gate < 1, "algorithm.gate must lie in [0, 1): 1 would imitate every problem, like qed sft.")
        require(
            0 < self.sft < math.inf,
            "algorithm.sft must be a finite number above 0. To train without demonstrations, use qed dr-grpo.",
        )

    @property
    def needs_correctness(self) -> bool:
        """True, because the gate counts right answers."""
        return True

    def rows(self, groups: Groups) -> list[Rollout]:
        """Return the demonstrations of the imitated problems, and the sampled answers of the others."""
        return super().rows([self._choose(group) for group in groups])

    def _choose(self, group: Group) -> Group:
        demonstrations, answers = _split(group)
        judged = [answer for answer in answers if answer.has_reward]
        failed = judged and len(select_correct(judged)) <= self.gate * len(judged)
        return demonstrations if demonstrations and failed else answers

    def weigh_imitated(self, mask: Tensor) -> Tensor:
        """Compute the weights of a mean over all imitated tokens of the step, times `sft`."""
        return self.sft * mask / mask.sum().clamp(min=1)


def _split(group: Sequence[Rollout]) -> tuple[Group, Group]:
    """Return a group's demonstrations and its sampled answers; a greedy baseline is neither."""
    sampled = [rollout for rollout in group if rollout.source != "greedy"]
    return (
        [rollout for rollout in sampled if not rollout.is_on_policy],
        [rollout for rollout in sampled if rollout.is_on_policy],
    )
