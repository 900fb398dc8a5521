"""Another attempt: tells the policy that its answer is wrong; it answers again for a discounted reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from qed.environments.base import Environment, Reply, State
from qed.errors import UsageError
from qed.types import Grade


@dataclass(frozen=True)
class Retry(Environment):
    """Tells the policy that its answer is wrong; each further attempt multiplies the final reward by the discount."""

    max_turns: int = 2
    """The maximum number of policy turns in an answer."""
    discount: float = 0.5
    """The factor by which each further attempt multiplies the final answer's reward."""
    text: str = "That answer is wrong. Try again."
    """The message to the policy."""

    needs_grade: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject a discount outside [0, 1]."""
        super().__post_init__()
        if not 0 <= self.discount <= 1:
            raise UsageError("The environment option retry.discount must lie between 0 and 1.")

    def step(self, state: State) -> Reply | None:
        """Tell the policy that its answer is wrong; a correct answer, or one that nothing could judge, ends it."""
        wrong = state.grade is not None and state.grade.is_decided and not state.grade.correct
        return Reply(self.text, message=True) if wrong else None

    def finish(self, grade: Grade, rewards: Sequence[float]) -> Grade:
        """Discount the final answer's reward once for each earlier attempt."""
        return replace(grade, reward=grade.reward * self.discount ** len(rewards)) if rewards else grade


environment = Retry()
