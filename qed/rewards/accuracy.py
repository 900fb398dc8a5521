"""Correct when the final answer of the text equals the gold answer, wherever and however it is written.

No format is required.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.errors import UsageError
from qed.grading.extraction.patterns import LAST, check_pattern
from qed.grading.policy import PolicyName, find_policy
from qed.rewards.verdicts import grade_by_final_answer
from qed.types import Grade, Rollout


@dataclass(frozen=True)
class Accuracy:
    """Reward = correct."""

    mode: Literal["strict", "flexible", "lenient"] = "flexible"
    """Where to find the answer. strict: box, tag or #### line; flexible: also in words; lenient: also unclosed tags."""

    pattern: str = ""
    """A regular expression that replaces the mode: the answer is the first group of its last match."""

    policy: PolicyName = "math"
    """How answers are compared: math, qwen (also accepts 100 times, 1/100 or close values), strict (no conventions)."""

    def __post_init__(self) -> None:
        """Raise if the regular expression does not compile."""
        if self.pattern:
            try:
                check_pattern(f"{LAST}{self.pattern}")
            except ValueError as error:
                raise UsageError(f"accuracy.pattern: {error}.") from error

    def __call__(self, rollout: Rollout) -> Grade:
        mode = f"{LAST}{self.pattern}" if self.pattern else self.mode
        return grade_by_final_answer(rollout, mode, find_policy(self.policy))


reward = Accuracy()
