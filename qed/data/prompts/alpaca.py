"""Alpaca's instruction and response (Taori et al. 2023), as CS336 writes it; works on any base model."""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP = ("### Instruction:",)
REWARD = "accuracy"

# Word for word what many checkpoints were trained on, so it is not reworded.
TEXT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """The question as the instruction."""
    return TEXT.replace("{instruction}", problem.question)


def demonstration(problem: Problem) -> str | None:
    """The solution, and the answer in a sentence behind it; None for a problem without a worked solution."""
    return f"{problem.solution}\n\nThe answer is {problem.answer}." if problem.solution else None
