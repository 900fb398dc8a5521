"""What an algorithm is: settings and a few pure functions; the learner never knows which one it runs.

A loss is a sum: averaging is a column of weights, fixed over all rows of an optimizer step before any cutting. So
micro-batches, row order, padding and ranks cannot change a gradient. Nothing here imports torch at run time, which
keeps `qed grpo --help` instant: leaves use the methods of the tensors that they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from qed.errors import UsageError
from qed.types import Group, Groups, Problem, Request, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.batch import Batch

Average = Literal["token", "sequence", "constant"]


def spread(mask: Tensor, average: Average, length: int) -> Tensor:
    """The weight of every token in the step's loss, [B, T]; the rows of `mask` are all rows of the optimizer step.

    `token` is DAPO's mean over all tokens, `sequence` is GRPO's mean over rows of each row's mean, `constant` is Dr.
    GRPO's sum over rows times the generation budget `length`.
    """
    rows = len(mask)
    if average == "token":
        return mask / mask.sum().clamp(min=1)
    if average == "sequence":
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / rows
    return mask / (rows * length)


@dataclass(frozen=True)
class Algorithm:
    """The default of every stage: one group a problem, all rows count, the token mean."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, or by a constant length."""

    online: ClassVar[bool] = True
    # What this algorithm sets in place of the defaults in settings.py, and for a model made from nothing besides:
    # weights that are random numbers bear, and need, a far larger learning rate than those that were trained before.
    defaults: ClassVar[dict[str, Any]] = {}
    fresh_defaults: ClassVar[dict[str, Any]] = {}

    @property
    def reference(self) -> bool:
        """Whether the loss reads the log-probs of a frozen reference model."""
        return False

    def plan(self, problems: Sequence[Problem], group_size: int) -> list[Request]:
        """What to ask of the sampler in this step."""
        return [Request(problem, group_size) for problem in problems]

    def enough(self, groups: Groups) -> bool:
        """Whether the groups suffice for a step, or the recipe should gather more."""
        return len(groups) > 0

    def advantages(self, rewards: Tensor) -> Tensor:
        """The advantages of one group, [G] float64, from its rewards, [G] float64."""
        return rewards

    def rows(self, groups: Groups) -> list[Rollout]:
        """The rollouts that count in this step's average."""
        return [rollout for group in groups for rollout in group]

    def weights(self, batch: Batch, length: int) -> Tensor:
        """The weight of every token, [B, T], over all rows of the optimizer step; `length` is the generation budget."""
        return spread(batch.mask, self.average, length)

    def live(self, batch: Batch) -> Tensor:
        """The rows that have a gradient, [B] bool; the others count in the average but are not computed."""
        return batch.advantages != 0

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of some rows as a weighted sum, and sums for the metrics that are weighted the same way.

        Args:
            batch: the rows, columns [B, T] aligned on labels.
            logps: [B, T], log-probs of the labels under the current policy.
            entropy: [B, T], entropy of the current policy.
        """
        raise NotImplementedError


def require(condition: bool, message: str) -> None:
    """Raise a UsageError when an algorithm's setting is out of its range."""
    if not condition:
        raise UsageError(message)


def all_equal(rewards: Tensor) -> bool:
    """Whether a group's rewards are the same number; compared directly, because rounding can leave a tiny deviation."""
    return bool((rewards == rewards[0]).all())


def correct_ones(group: Group) -> list[Rollout]:
    """The answers of a group that the grader found right."""
    return [rollout for rollout in group if rollout.grade is not None and rollout.grade.correct]
