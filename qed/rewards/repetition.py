"""A repetition penalty: the share of repeated word n-grams, times the largest penalty.

This is the repetition penalty of "Demystifying Long Chain-of-Thought Reasoning" (arXiv 2502.03373) in Open-R1's form:
penalty x (1 - distinct / all) over the lower-case n-grams of words; 0 for a text of fewer than n words.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.errors import UsageError
from qed.types import Grade, Rollout

JUDGES = False


@dataclass(frozen=True)
class Repetition:
    """Reward = the penalty, between `max_penalty` and 0."""

    ngram: int = 3
    """The number of words in an n-gram."""

    max_penalty: float = -1.0
    """The reward that a text of nothing but repetition approaches; at most 0."""

    def __post_init__(self) -> None:
        if self.ngram < 1 or self.max_penalty > 0:
            values = f"{self.ngram} and {self.max_penalty}"
            raise UsageError(f"repetition: ngram must be at least 1 and max_penalty at most 0, not {values}.")

    def __call__(self, rollout: Rollout) -> Grade:
        words = rollout.text.lower().split()
        ngrams = list(zip(*(words[start:] for start in range(self.ngram)), strict=False))
        repeated = 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
        return Grade(self.max_penalty * repeated + 0.0, False, True, None)


reward = Repetition()
