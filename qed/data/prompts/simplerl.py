"""SimpleRL-Zoo's prompt (arXiv 2503.18892): a general system message, and the instruction after the question."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template, build_boxed_solution
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "boxed"
# Existing checkpoints were trained on exactly these texts, so they must not change.
SYSTEM = "You are a helpful assistant."
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question and the instruction with the tokenizer's chat template."""
    return apply_chat_template(f"{problem.question}\n{INSTRUCTION}", tokenizer, SYSTEM)


def demonstration(problem: Problem) -> str | None:
    """Return the solution with its answer in a box."""
    return build_boxed_solution(problem)
