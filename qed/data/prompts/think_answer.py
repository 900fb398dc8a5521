"""The default prompt: a chat turn, answered by <think>steps</think><answer>result</answer>."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "think_answer"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question with the tokenizer's chat template."""
    return apply_chat_template(problem.question, tokenizer)


def demonstration(problem: Problem) -> str | None:
    """Return the solution and the answer in their tags; None if either is missing.

    The reasoning is empty if the data omits the steps on purpose.
    """
    # In a csv file the value is a string.
    without_steps = str(problem.meta.get("without_steps")).casefold() == "true"
    if not problem.answer or not (problem.solution or without_steps):
        return None
    return f"<think>{problem.solution}</think><answer>{problem.answer}</answer>"
