"""A linear length penalty: 0 up to `free` tokens, then down to -1 at `max_tokens`.

Many recipes subtract it from correctness; its weight in the sum is the penalty of an answer of maximum length.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.errors import UsageError
from qed.types import Grade, Rollout

JUDGES = False


@dataclass(frozen=True)
class Length:
    """Reward = the penalty, in [-1, 0]."""

    max_tokens: int = 0
    """The length with a penalty of 1, in tokens; 0: the run's limit."""

    free: int = 0
    """The number of tokens without a penalty."""

    def __post_init__(self) -> None:
        if self.max_tokens < 0 or self.free < 0 or (self.max_tokens and self.free >= self.max_tokens):
            raise UsageError(f"length: free must be between 0 and max_tokens, not {self.free} of {self.max_tokens}.")

    def __call__(self, rollout: Rollout) -> Grade:
        if not self.max_tokens:
            raise UsageError("length needs the maximum answer length: set length.max_tokens.")
        paid = max(0, rollout.trained_count - self.free)
        return Grade(-min(1.0, paid / (self.max_tokens - self.free)) + 0.0, False, True, None)


reward = Length()
