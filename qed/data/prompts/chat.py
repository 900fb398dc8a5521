"""The bare question in the tokenizer's chat template: the usual prompt of an instruction-tuned model."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "accuracy"


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question with the tokenizer's chat template."""
    return apply_chat_template(problem.question, tokenizer)


def demonstration(problem: Problem) -> str | None:
    """Return the solution followed by a sentence with the answer; without a solution, only the answer."""
    if not problem.answer:
        return None
    return f"{problem.solution}\n\nThe answer is {problem.answer}." if problem.solution else problem.answer
