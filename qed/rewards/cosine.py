"""Correctness scaled by length along half a cosine: correct answers earn more when short, wrong ones lose less when
long.

This is the cosine reward of "Demystifying Long Chain-of-Thought Reasoning" (arXiv 2502.03373) with Open-R1's
parameters. For an answer of length t x max_tokens, it goes from the value of the shortest answer to that of the
longest: longest + (shortest - longest) x (1 + cos(pi t)) / 2. Length is in tokens, as in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from qed.errors import UsageError
from qed.rewards.verdicts import grade_by_final_answer
from qed.types import Grade, Rollout


@dataclass(frozen=True)
class Cosine:
    """Reward = the value on the curve for correct or for wrong answers."""

    max_tokens: int = 0
    """The length at which the curves end, in tokens; 0: the run's limit."""

    max_value_correct: float = 1.0
    """Reward of the shortest correct answer."""

    min_value_correct: float = 0.5
    """Reward of the longest correct answer."""

    min_value_wrong: float = -1.0
    """Reward of the shortest wrong answer."""

    max_value_wrong: float = -0.5
    """Reward of the longest wrong answer."""

    def __call__(self, rollout: Rollout) -> Grade:
        if self.max_tokens <= 0:
            raise UsageError("cosine needs the maximum answer length: set cosine.max_tokens.")
        grade = grade_by_final_answer(rollout)
        shortest, longest = (
            (self.max_value_correct, self.min_value_correct)
            if grade.correct
            else (self.min_value_wrong, self.max_value_wrong)
        )
        # Clamped, because beyond max_tokens the cosine would rise again.
        share = min(1.0, rollout.trained_count / self.max_tokens)
        value = longest + (shortest - longest) * (1 + math.cos(math.pi * share)) / 2
        return replace(grade, reward=value)


reward = Cosine()
