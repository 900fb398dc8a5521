"""The r1_zero reward of CS336 and Dr. GRPO: 1 when the format holds and the answer is correct; the format alone earns
nothing.

The format is correct if the text has the exact substring `</think> <answer>` and an `</answer>`. qed's grader reads the
answer like every other reward: inside the last closed `<answer>`, before the next turn. The reference's graders read
everything after the last `<answer>`, or the last complete box in it, so that a second answer outside of the tags can
replace a wrong one. Source: understand-r1-zero (arXiv 2503.20783).
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.grading.extract import extract_final_answer, find_last_boxed
from qed.grading.policy import MATH, Policy, PolicyName, find_policy
from qed.grading.strings import Gold, Grader, grade_answer
from qed.rewards.verdicts import NO_ANSWER, NO_FORMAT
from qed.types import Grade, Rollout


@dataclass(frozen=True)
class R1Zero:
    """Reward = correct, for well-formed answers only."""

    grader: Grader = "qed"
    """What compares answers: qed's grader, or the reference's rules, fast (strings) or slow (like math-verify)."""

    policy: PolicyName = "math"
    """How qed's grader compares: math, qwen (also accepts 100 times, 1/100 or close values), strict (as written)."""

    def __call__(self, rollout: Rollout) -> Grade:
        return score_response(rollout.text, rollout.problem.answer, self.grader, find_policy(self.policy))


def score_response(response: str, gold: Gold, grader: Grader = "qed", policy: Policy = MATH) -> Grade:
    """Grade a response; `gold` is one answer (text or number), or a list of accepted answers."""
    format_ok = "</think> <answer>" in response and "</answer>" in response
    extracted = _extract_answer(response, grader) if format_ok else None
    missing = NO_ANSWER if format_ok else NO_FORMAT
    verdict = missing if extracted is None else grade_answer(gold, extracted, grader, policy)
    score = float(verdict.correct)
    parts = {"correct": score, "format": float(format_ok)}
    return Grade(score, verdict.correct, format_ok, extracted, parts, verdict.tier, verdict.reason)


def _extract_answer(text: str, grader: Grader) -> str | None:
    if grader == "qed":
        final = extract_final_answer(text, "strict")
        # A box or a number elsewhere does not count as an answer in the format.
        return final.answer if final and final.source == "tag" else None
    answer = text.rpartition("<answer>")[2].replace("</answer>", "").strip()
    return find_last_boxed(answer) if "\\boxed" in answer else answer


reward = R1Zero()
