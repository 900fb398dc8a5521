"""The r1_zero reward of CS336 and Dr. GRPO: 1 when the format holds and the answer is right; the format alone earns
nothing.

The format holds when the text has the exact substring `</think> <answer>` and an `</answer>`. The answer is everything
behind the last `<answer>`; where it has a box, the last complete box. Source: understand-r1-zero (arXiv 2503.20783).
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.grading.extract import find_last_boxed
from qed.grading.strings import Gold, Grader, grade_answer
from qed.rewards.verdicts import NO_ANSWER, NO_FORMAT
from qed.types import Grade, Rollout


@dataclass(frozen=True)
class R1Zero:
    """Reward = correct, for well-formed answers only."""

    grader: Grader = "qed"
    """Who compares answers: qed's own grader, or the reference's rules, fast (on strings) or slow (as math-verify)."""

    def __call__(self, rollout: Rollout) -> Grade:
        return score_response(rollout.text, rollout.problem.answer, self.grader)


def score_response(response: str, gold: Gold, grader: Grader = "qed") -> Grade:
    """The grade of a response; `gold` is one answer, text or number, or a list of which any is right."""
    format_ok = "</think> <answer>" in response and "</answer>" in response
    extracted = _extract_answer(response) if format_ok else None
    nothing = NO_ANSWER if format_ok else NO_FORMAT
    verdict = nothing if extracted is None else grade_answer(gold, extracted, grader)
    pay = float(verdict.correct)
    parts = {"correct": pay, "format": float(format_ok)}
    return Grade(pay, verdict.correct, format_ok, extracted, parts, verdict.tier, verdict.reason)


def _extract_answer(text: str) -> str | None:
    answer = text.rpartition("<answer>")[2].replace("</answer>", "").strip()
    return find_last_boxed(answer) if "\\boxed" in answer else answer


reward = R1Zero()
