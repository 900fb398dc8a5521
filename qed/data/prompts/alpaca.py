"""Alpaca's instruction and response (Taori et al. 2023), as in CS336; works with any base model."""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP = ("### Instruction:",)
REWARD = "accuracy"

# Many checkpoints were trained on exactly this text, so it must not change.
TEXT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question as the instruction."""
    return TEXT.replace("{instruction}", problem.question)


def demonstration(problem: Problem) -> str | None:
    """Return the solution followed by a sentence with the answer; None without one of them."""
    return f"{problem.solution}\n\nThe answer is {problem.answer}." if problem.solution and problem.answer else None
