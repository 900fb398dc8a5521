"""Right when the whole answer is <think>…</think><answer>RESULT</answer> and RESULT is the gold; the format alone earns
0.1."""

from __future__ import annotations

from qed.grading.equal import equal
from qed.grading.extract import between
from qed.types import Grade, Rollout

FORMAT_WEIGHT = 0.1
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def reward(rollout: Rollout) -> Grade:
    """Reward = correct + 0.1 x format; an answer outside the format is never correct."""
    text = rollout.text.strip()
    format_ok = well_formed(text)
    extracted = between(text, "<answer>", "</answer>")
    correct = format_ok and extracted is not None and equal(rollout.problem.answer, extracted).correct
    parts = {"correct": float(correct), "format": float(format_ok)}
    return Grade(correct + FORMAT_WEIGHT * format_ok, correct, format_ok, extracted, parts)


def well_formed(text: str) -> bool:
    """Each tag exactly once, in order, nothing outside of them but white space between the two parts."""
    if any(text.count(tag) != 1 for tag in TAGS):
        return False
    thought, _, rest = text.removeprefix("<think>").partition("</think>")
    rest = rest.strip()
    return (
        text.startswith("<think>")
        and rest.startswith("<answer>")
        and rest.endswith("</answer>")
        and not any(tag in thought for tag in TAGS)
    )
