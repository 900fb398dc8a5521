"""Compute metrics of an answer besides its grade: correctness by other extraction modes, and reasoning length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qed.grading.extract import find_final_answer
from qed.grading.extraction.marks import THOUGHTS, Tags, list_answer_tags
from qed.grading.policy import MATH, Policy
from qed.rewards.verdicts import classify, judge_found
from qed.types import Rollout


def compute_sample_metrics(rollout: Rollout, tags: Sequence[str] = (), policy: Policy = MATH) -> dict[str, Any]:
    """Compute the columns that an evaluation adds to the row of a graded answer.

    `tags` are those of the prompt, in order: two around the reasoning, then two around the answer if it has any.

    `strict` and `flexible`: whether the answer by this extraction mode is right; `string`: whether the flexible answer
    is right by string comparison; `class`: class of format × answer; `reasoning_chars`: length of the reasoning.
    """
    gold, text = rollout.problem.answer, rollout.text
    pairs = list_answer_tags(tags)
    strict, flexible = (find_final_answer(text, mode, pairs) for mode in ("strict", "flexible"))
    loose, _ = judge_found(gold, flexible, policy)
    # If strict extraction finds an answer, flexible extraction finds the same.
    exact = loose if strict == flexible else judge_found(gold, strict, policy)[0]
    return {
        "strict": exact.correct,
        "flexible": loose.correct,
        "string": loose.correct and loose.tier == "string",
        "class": classify(rollout.grade, gold, text, policy, pairs) if rollout.grade else None,
        "reasoning_chars": len(extract_thought(text, (tags[0], tags[1]) if tags else None)),
    }


def extract_thought(text: str, tags: Tags | None = None) -> str:
    """Return the reasoning before the answer, without its tags; without an end tag it extends to the end of the text.

    The prompt's own `tags` are tried first, then the common ones.
    """
    for opening, closing in (tags, *THOUGHTS) if tags else THOUGHTS:
        before, closed, _ = text.partition(closing)
        _, opened, inside = before.partition(opening)
        if closed or opened:
            return (inside if opened else before).strip()
    return ""
