"""The reward that both sides call: qed's for the task, with noise if every row should have a gradient."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from qed.rewards.grader import Grader
from qed.types import Grade, Group

NOISE = 1e-3


class NoisyGrader:
    """A grader whose rewards differ randomly within every group, so that each row has an advantage and a gradient.

    Args:
        grader: gives the grades.
        noise: maximum noise to add; 0 leaves the rewards unchanged.
    """

    def __init__(self, grader: Grader, noise: float) -> None:
        self._grader, self._noise = grader, noise
        self.judge, self.checks_format = grader.judge, grader.checks_format
        self._chance = random.Random(0)
        # Share of groups in the last call whose answers have different rewards, before noise.
        self.signal_share = 0.0

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """Return the grades of each group's answers."""
        grades = self._grader(groups)
        self.signal_share = sum(len({grade.reward for grade in group}) > 1 for group in grades) / len(grades)
        return [[self._noised(grade) for grade in group] for group in grades]

    def _noised(self, grade: Grade) -> Grade:
        return replace(grade, reward=grade.reward + self._noise * self._chance.random())

    def close(self) -> None:
        """Close the grader."""
        self._grader.close()


def digest(prompts: Sequence[Sequence[int]]) -> int:
    """Return a checksum of a set of prompts, regardless of their order and repetitions."""
    return hash(frozenset(tuple(prompt) for prompt in prompts))
