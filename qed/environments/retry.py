"""Another attempt: the policy is told that its answer is wrong, and answers again for a discounted reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from qed.environments.base import Environment, Reply, State
from qed.errors import UsageError
from qed.types import Grade


@dataclass(frozen=True)
class Retry(Environment):
    """Tells the policy that its answer is wrong; a later right answer has its reward times the discount each time."""

    max_turns: int = 2
    """The most turns of the policy in an answer."""
    discount: float = 0.5
    """What each further attempt multiplies the final answer's reward by."""
    text: str = "That answer is wrong. Try again."
    """What the policy is told."""

    needs_grade: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a discount outside of 0 to 1."""
        super().__post_init__()
        if not 0 <= self.discount <= 1:
            raise UsageError("The environment option retry.discount must lie between 0 and 1.")

    def step(self, state: State) -> Reply | None:
        """Say that a wrong answer is wrong; a right one, or one that nothing could judge, ends the answer."""
        wrong = state.grade is not None and state.grade.is_decided and not state.grade.correct
        return Reply(self.text, message=True) if wrong else None

    def finish(self, grade: Grade, rewards: Sequence[float]) -> Grade:
        """Discount the reward of the final answer once for each attempt before it."""
        return replace(grade, reward=grade.reward * self.discount ** len(rewards)) if rewards else grade


environment = Retry()
