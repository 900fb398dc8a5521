"""Step by step with a boxed answer: the prompt and, with its tokenizer, the ChatML of Qwen2.5-Math (arXiv
2409.12122)."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template, build_boxed_solution
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "boxed"
# Qwen2.5-Math was trained on exactly this text, so it must not change.
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question with the tokenizer's chat template and the instruction as system message."""
    return apply_chat_template(problem.question, tokenizer, SYSTEM)


def demonstration(problem: Problem) -> str | None:
    """Return the solution with its answer in a box."""
    return build_boxed_solution(problem)
