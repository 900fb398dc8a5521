"""Correct when the final answer of the text equals the gold answer, wherever and however it is written.

No format is required.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.grading.policy import PolicyName, find_policy
from qed.rewards.verdicts import grade_by_final_answer
from qed.types import Grade, Rollout


@dataclass(frozen=True)
class Accuracy:
    """Reward = correct."""

    mode: Literal["strict", "flexible", "lenient"] = "flexible"
    """Where the answer may be. strict: box, tag or #### line; flexible: also words; lenient: also unclosed ones."""

    policy: PolicyName = "math"
    """The conventions of the comparison: math, qwen (also times 100, divided by 100 or close), strict (none)."""

    def __call__(self, rollout: Rollout) -> Grade:
        return grade_by_final_answer(rollout, self.mode, find_policy(self.policy))


reward = Accuracy()
