"""Correct when math-verify says that the final answer equals the gold answer, as most public evaluations of RL do.

The final answer is extracted as by `accuracy`. math-verify runs in a child process with limits. Use it as a second
opinion with `qed evaluate --also-grade math_verify`; qed's own comparison is faster and stricter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.grading import symbolic
from qed.grading.bounds import MAX_ANSWER_CHARS
from qed.grading.equal import TOO_LONG, Verdict
from qed.grading.extract import extract_final_answer
from qed.rewards.verdicts import NO_ANSWER, grade_by_verdict
from qed.types import Grade, Rollout


@dataclass(frozen=True)
class MathVerify:
    """Reward = correct."""

    mode: Literal["strict", "flexible", "lenient"] = "flexible"
    """Where to find the answer. strict: box, tag or #### line; flexible: also in words; lenient: also unclosed tags."""

    def __call__(self, rollout: Rollout) -> Grade:
        found = extract_final_answer(rollout.text, self.mode)
        answer = found.answer if found else None
        return grade_by_verdict(NO_ANSWER if answer is None else _compare(rollout.problem.answer, answer), answer)


def _compare(gold: str, answer: str) -> Verdict:
    if max(len(gold), len(answer)) > MAX_ANSWER_CHARS:
        return TOO_LONG
    return Verdict(*symbolic.are_equal(gold, answer))


reward = MathVerify()
