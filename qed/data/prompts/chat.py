"""The bare question in the tokenizer's own chat template: how an instruction-tuned model is usually asked."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "accuracy"


def render(problem: Problem, tokenizer: Any) -> str:
    """The question."""
    return apply_chat_template(problem.question, tokenizer)


def demonstration(problem: Problem) -> str | None:
    """The solution, and the answer in a sentence behind it; without a solution, the answer alone."""
    return f"{problem.solution}\n\nThe answer is {problem.answer}." if problem.solution else problem.answer or None
