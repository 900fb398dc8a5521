"""LUFFY's rewards for an answer after the thinking: version 3 gives 1 or 0, version 1 also penalises.

LUFFY's prompt already contains the opening `<think>`, and its scripts grade only the completion. So `<think>` and a
newline are prepended to a completion that does not start with `<think>`. Then both tags are required, and the text
between the first and the second `</think>` is graded: 1 or 0 in version 3, which all scripts use. Version 1 gives 1 for
a correct box before any next turn, -0.5 for a wrong one, and -1 if a tag or the box is missing. Source: LUFFY (arXiv
2504.14945).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.grading.extract import extract_final_answer, find_last_boxed
from qed.grading.extraction.marks import cut_at_turn
from qed.grading.policy import PolicyName, find_policy
from qed.rewards.verdicts import NO_ANSWER, NO_FORMAT, judge_answer
from qed.types import Grade, Rollout

THINK, THINK_END = "<think>", "</think>"
# Reward of a correct answer, a wrong one, and one without the format.
SCORES: dict[int, tuple[float, float, float]] = {1: (1.0, -0.5, -1.0), 3: (1.0, 0.0, 0.0)}


@dataclass(frozen=True)
class LuffyThink:
    """Reward = the version's value for a correct, a wrong or an ill-formatted answer."""

    version: Literal[1, 3] = 3
    """`reward_impl_version` of LUFFY's scripts."""

    policy: PolicyName = "math"
    """How answers are compared: math, qwen (also accepts 100 times, 1/100 or close values), strict (no conventions)."""

    def __call__(self, rollout: Rollout) -> Grade:
        section = _find_answer_section(rollout.text)
        answer = None if section is None else self._extract_answer(section)
        format_ok = section is not None and (self.version == 3 or answer is not None)
        verdict = judge_answer(rollout.problem.answer, answer, find_policy(self.policy))
        if not format_ok:
            verdict = NO_FORMAT if section is None else NO_ANSWER
        correct, wrong, unformatted = SCORES[self.version]
        score = correct if verdict.correct else wrong if format_ok else unformatted
        parts = {"correct": float(verdict.correct), "format": float(format_ok)}
        return Grade(score, verdict.correct, format_ok, answer, parts, verdict.tier, verdict.reason)

    def _extract_answer(self, section: str) -> str | None:
        if self.version == 1:
            return find_last_boxed(cut_at_turn(section))
        extracted = extract_final_answer(section)
        return extracted.answer if extracted else None


def _find_answer_section(text: str) -> str | None:
    """Return the text between the first and the second `</think>`; None if the reasoning is never closed."""
    text = text if text.startswith(THINK) else f"{THINK}\n{text}"
    pieces = text.split(THINK_END, 2)
    return pieces[1] if len(pieces) > 1 else None


reward = LuffyThink()
