"""The policy itself as a teacher that is shown the problem's demonstration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qed.algorithms.base import require, require_moves

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch

WORDING = (
    "{question}\n\nThis is a worked solution of the problem. Read it until you know why each step is right:\n\n"
    "{demonstration}\n\nNow solve the problem yourself, in your own words."
)


@dataclass(frozen=True)
class SelfTeacher:
    """The teacher's weights and prompt, and the tokens that learn from it."""

    teacher_weights: Literal["start", "ema", "live"] = "start"
    """start: the policy at the start of the phase; live: the policy as it is; ema: one that follows the policy."""
    teacher_every: int = 1
    """Number of steps after which the teacher ema moves towards the policy."""
    teacher_mix: float = 0.01
    """How far the teacher moves: 1 replaces it with the policy, smaller values mix their weights."""
    wording: str = WORDING
    """Text that replaces the question in the teacher's prompt; {question} and {demonstration} are placeholders."""
    skip_tokens: int = 0
    """Number of first tokens of an answer that do not learn from the teacher, which may begin by naming the
    solution."""

    def __post_init__(self) -> None:
        """Reject settings out of range."""
        require(self.teacher_every >= 1, "algorithm.teacher_every must be at least 1.")
        require_moves(self.teacher_every, self.teacher_mix, "teacher")
        require(self.skip_tokens >= 0, "algorithm.skip_tokens must not be negative.")
        for place in ("{question}", "{demonstration}"):
            require(place in self.wording, f"algorithm.wording must contain {place}, or the teacher would not see it.")

    @property
    def moves(self) -> tuple[int, float]:
        """The interval in steps at which the teacher moves towards the policy, and how far."""
        return (self.teacher_every, self.teacher_mix) if self.teacher_weights == "ema" else (0, 1.0)


def find_learning(batch: Batch, skip: int) -> Tensor:
    """Return the trained tokens that learn from the teacher, [B, T], 0 or 1.

    These are the tokens of rows whose teacher has its own prompt, without the first `skip` ones.
    """
    if batch.teacher is None:
        return batch.mask * 0
    shown = (batch.teacher.weights != 0).any(1)[:, None]
    return batch.mask * (shown & (batch.mask.cumsum(1) > skip))


def weigh_learning(batch: Batch, weigh: Callable[[Batch], Tensor]) -> Tensor:
    """Compute the weights of the rows that learn from the teacher, from only these, and 0 for the others, [B, T]."""
    rows = find_learning(batch, 0).any(1).nonzero().flatten()
    weights = batch.mask * 0
    if len(rows):
        part = weigh(batch.select(rows))
        weights[rows, : part.shape[1]] = part
    return weights
