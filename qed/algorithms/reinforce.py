"""REINFORCE (Williams 1992), with the mean reward of the group as its baseline or with none.

loss = - sum_t w_t A log pi(y_t | x, y_<t), A = r - baseline
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from qed.algorithms.base import Algorithm, all_equal

if TYPE_CHECKING:
    from torch import Tensor

    from qed.batch import Batch


@dataclass(frozen=True)
class Reinforce(Algorithm):
    """The plain policy gradient."""

    baseline: Literal["group", "none"] = "group"
    """What is subtracted from the reward: the mean of the group, or nothing."""

    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    def advantages(self, rewards: Tensor) -> Tensor:
        """Rewards less their baseline; exactly 0 in a group of equal rewards, if there is a baseline."""
        if self.baseline == "none":
            return rewards
        return rewards * 0 if all_equal(rewards) else rewards - rewards.mean()

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted policy gradient; its value carries no information, its gradient does."""
        return -(batch.weights * batch.advantages[:, None] * logps).sum(), {}
