"""The r1_zero reward of CS336 and Dr. GRPO: 1 when the format holds and the answer is right; the format alone earns
nothing.

The format holds when the text has the exact substring `</think> <answer>` and an `</answer>`. The answer is everything
behind the last `<answer>`; where it has a box, the last complete box.
"""

from __future__ import annotations

from qed.grading.equal import equal
from qed.grading.extract import last_boxed
from qed.types import Grade, Rollout


def reward(rollout: Rollout) -> Grade:
    """Reward = correct, for well-formed answers only."""
    text = rollout.text
    format_ok = "</think> <answer>" in text and "</answer>" in text
    extracted = _answer(text) if format_ok else None
    correct = extracted is not None and equal(rollout.problem.answer, extracted).correct
    return Grade(float(correct), correct, format_ok, extracted, {"correct": float(correct), "format": float(format_ok)})


def _answer(text: str) -> str | None:
    answer = text.rpartition("<answer>")[2].replace("</answer>", "").strip()
    return last_boxed(answer) if "\\boxed" in answer else answer
