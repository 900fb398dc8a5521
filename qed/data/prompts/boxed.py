"""Step by step with the answer in a box: the words and, with its tokenizer, the ChatML of Qwen2.5-Math (arXiv
2409.12122)."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template, build_boxed_solution
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "boxed"
# Word for word what Qwen2.5-Math was trained on, so it is not reworded.
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def render(problem: Problem, tokenizer: Any) -> str:
    """The question in the tokenizer's chat template, the instruction as its system message."""
    return apply_chat_template(problem.question, tokenizer, SYSTEM)


def demonstration(problem: Problem) -> str | None:
    """The solution, its result in a box."""
    return build_boxed_solution(problem)
