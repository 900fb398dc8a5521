"""What a row of an evaluation says of an answer beside its grade: other ways of looking for it, and whether it
thought."""

from __future__ import annotations

from typing import Any

from qed.grading.extract import extract_final_answer
from qed.rewards.verdicts import classify, judge_answer
from qed.types import Rollout

# How prompts and models mark a thought; a prompt may have opened it before the answer began.
THOUGHTS = (
    ("<think>", "</think>"),
    ("<reasoning>", "</reasoning>"),
    ("<start_working_out>", "<end_working_out>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)


def compute_sample_metrics(rollout: Rollout) -> dict[str, Any]:
    """The columns that an evaluation adds to the row of a graded answer.

    `strict` and `flexible`: whether the answer that such an extraction finds is right; `string`: whether the flexible
    one is right by its characters alone; `class`: of format × answer; `reasoning_chars`: the length of its thought.
    """
    gold, text = rollout.problem.answer, rollout.text
    strict, flexible = (extract_final_answer(text, mode) for mode in ("strict", "flexible"))
    loose = judge_answer(gold, flexible.answer if flexible else None)
    # What the strict search finds, the flexible one finds first.
    exact = loose if strict == flexible else judge_answer(gold, strict.answer if strict else None)
    return {
        "strict": exact.correct,
        "flexible": loose.correct,
        "string": loose.correct and loose.tier == "string",
        "class": classify(rollout.grade, rollout) if rollout.grade else None,
        "reasoning_chars": len(extract_thought(text)),
    }


def extract_thought(text: str) -> str:
    """The reasoning before the answer, without its tags: empty where there is none; the rest of a text that never ends
    it."""
    for opening, closing in THOUGHTS:
        before, closed, _ = text.partition(closing)
        _, opened, inside = before.partition(opening)
        if closed or opened:
            return (inside if opened else before).strip()
    return ""
