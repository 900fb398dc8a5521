"""Correct when the last \\boxed{…} equals the gold answer, for prompts with the question alone; the box is the format.

The companion of `r1_zero` in CS336 and Dr. GRPO (arXiv 2503.20783): the same rules compare the answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.grading.extract import find_last_boxed
from qed.grading.extraction.marks import cut_at_turn
from qed.grading.policy import MATH, Policy, PolicyName, find_policy
from qed.grading.strings import Gold, Grader, grade_answer
from qed.rewards.verdicts import NO_ANSWER
from qed.types import Grade, Rollout


@dataclass(frozen=True)
class QuestionOnly:
    """Reward = correct; a complete box is the format and earns nothing."""

    grader: Grader = "qed"
    """What compares answers: qed's grader, or the reference's rules, fast (strings) or slow (like math-verify)."""

    policy: PolicyName = "math"
    """How qed's grader compares: math, qwen (also accepts 100 times, 1/100 or close values), strict (as written)."""

    def __call__(self, rollout: Rollout) -> Grade:
        return score_response(rollout.text, rollout.problem.answer, self.grader, find_policy(self.policy))


def score_response(response: str, gold: Gold, grader: Grader = "qed", policy: Policy = MATH) -> Grade:
    """Grade a response; `gold` is one answer (text or number), or a list of accepted answers."""
    # The reference's graders read the whole text, as published.
    answer = find_last_boxed(cut_at_turn(response) if grader == "qed" else response)
    verdict = NO_ANSWER if answer is None else grade_answer(gold, answer, grader, policy)
    score = float(verdict.correct)
    parts = {"correct": score, "format": float(answer is not None)}
    return Grade(score, verdict.correct, answer is not None, answer, parts, verdict.tier, verdict.reason)


reward = QuestionOnly()
