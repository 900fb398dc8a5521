"""Only the question, a baseline of CS336 and Dr. GRPO (arXiv 2503.20783); the answer is in a box."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import build_boxed_solution
from qed.types import Problem

CHAT = False
STOP: tuple[str, ...] = ()
REWARD = "question_only"


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question."""
    return problem.question


def demonstration(problem: Problem) -> str | None:
    """Return the solution on a new line with its answer in a box."""
    solution = build_boxed_solution(problem)
    return None if solution is None else f"\n{solution}"
