"""LUFFY's rewards: an answer behind the thinking, 1 for right; version 3 pays nothing else, version 1 also punishes.

`<think>` and a line break are put in front of an answer that does not begin with `<think>` already, because LUFFY's
prompt opens the thought and its scripts see the answer alone. Then both tags are asked for, and what stands between the
first and the second `</think>` is graded: 1 or 0 in version 3, which all scripts use. Version 1 pays 1 for a right box,
-0.5 for a wrong one, and -1 where a tag or the box is missing. Source: LUFFY (arXiv 2504.14945).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.grading.extract import extract_final_answer, find_last_boxed
from qed.rewards.verdicts import NO_ANSWER, NO_FORMAT, judge_answer
from qed.types import Grade, Rollout

OPENED, CLOSED = "<think>", "</think>"
# For a right answer, a wrong one, and one without the format.
PAY: dict[int, tuple[float, float, float]] = {1: (1.0, -0.5, -1.0), 3: (1.0, 0.0, 0.0)}


@dataclass(frozen=True)
class LuffyThink:
    """Reward = what the version pays for a right, a wrong or an ill-formatted answer."""

    version: Literal[1, 3] = 3
    """`reward_impl_version` of LUFFY's scripts."""

    def __call__(self, rollout: Rollout) -> Grade:
        section = _find_answer_section(rollout.text)
        answer = None if section is None else self._answer(section)
        format_ok = section is not None and (self.version == 3 or answer is not None)
        verdict = judge_answer(rollout.problem.answer, answer)
        if not format_ok:
            verdict = NO_FORMAT if section is None else NO_ANSWER
        right, wrong, unformatted = PAY[self.version]
        pay = right if verdict.correct else wrong if format_ok else unformatted
        parts = {"correct": float(verdict.correct), "format": float(format_ok)}
        return Grade(pay, verdict.correct, format_ok, answer, parts, verdict.tier, verdict.reason)

    def _answer(self, section: str) -> str | None:
        if self.version == 1:
            return find_last_boxed(section)
        found = extract_final_answer(section)
        return found.answer if found else None


def _find_answer_section(text: str) -> str | None:
    """What stands between the first and the second `</think>`; None where the thought does not close."""
    text = text if text.startswith(OPENED) else f"{OPENED}\n{text}"
    pieces = text.split(CLOSED, 2)
    return pieces[1] if len(pieces) > 1 else None


reward = LuffyThink()
