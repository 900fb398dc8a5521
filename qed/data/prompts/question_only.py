"""The bare question and nothing else, as CS336 and Dr. GRPO (arXiv 2503.20783) compare with; the answer in a box."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import build_boxed_solution
from qed.types import Problem

CHAT = False
STOP: tuple[str, ...] = ()
REWARD = "question_only"


def render(problem: Problem, tokenizer: Any) -> str:
    """The question."""
    return problem.question


def demonstration(problem: Problem) -> str | None:
    """The solution on a new line, its result in a box."""
    shown = build_boxed_solution(problem)
    return None if shown is None else f"\n{shown}"
