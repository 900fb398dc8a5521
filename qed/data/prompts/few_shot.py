"""Few-shot: the standard examples of a benchmark before the question, which `qed evaluate --shots` chooses.

The prompt is rendered where the benchmark is loaded; a question without examples is asked alone.
"""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP: tuple[str, ...] = ()
REWARD = "accuracy"


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question; a problem with examples has its prompt in `meta["rendered"]`."""
    return f"{problem.question}\n"


def demonstration(problem: Problem) -> str | None:
    """Return the solution, closed by a sentence with the answer; None without a worked solution."""
    return f" {problem.solution} The answer is {problem.answer}." if problem.solution else None
