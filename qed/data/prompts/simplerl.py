"""As SimpleRL-Zoo asks (arXiv 2503.18892): a general system message, the instruction behind the question."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template, build_boxed_solution
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "boxed"
# Word for word what existing checkpoints were trained on, so they are not reworded.
SYSTEM = "You are a helpful assistant."
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def render(problem: Problem, tokenizer: Any) -> str:
    """The question and the instruction in the tokenizer's chat template."""
    return apply_chat_template(f"{problem.question}\n{INSTRUCTION}", tokenizer, SYSTEM)


def demonstration(problem: Problem) -> str | None:
    """The solution, its result in a box."""
    return build_boxed_solution(problem)
