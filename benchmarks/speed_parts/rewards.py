"""The reward that both sides call: qed's own for the task, with noise where every row is to have a gradient."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from qed.rewards.grader import Grader
from qed.types import Grade, Group

NOISE = 1e-3


class NoisyGrader:
    """A grader whose rewards differ by chance within every group, so that each row has an advantage, and so a gradient.

    Args:
        grader: decides.
        noise: the most that is added; 0 leaves the rewards as they are.
    """

    def __init__(self, grader: Grader, noise: float) -> None:
        self._grader, self._noise = grader, noise
        self.judge, self.checks_format = grader.judge, grader.checks_format
        self._chance = random.Random(0)
        # Of the last call: the share of groups whose answers do not all earn the same, before noise.
        self.signal_share = 0.0

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """The grades of each group's answers."""
        grades = self._grader(groups)
        self.signal_share = sum(len({grade.reward for grade in group}) > 1 for group in grades) / len(grades)
        return [[self._noised(grade) for grade in group] for group in grades]

    def _noised(self, grade: Grade) -> Grade:
        return replace(grade, reward=grade.reward + self._noise * self._chance.random())

    def close(self) -> None:
        """End what runs for it."""
        self._grader.close()


def digest(prompts: Sequence[Sequence[int]]) -> int:
    """A number for a set of prompts, the same whatever their order and however often each stands there."""
    return hash(frozenset(tuple(prompt) for prompt in prompts))
