"""Few-shot: four worked problems of school and college mathematics with boxed answers before the question.

Minerva's prompt has the same number of examples (arXiv 2206.14858); works with any base model.
"""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import build_boxed_solution
from qed.types import Problem

CHAT = False
STOP = ("\n\nProblem:",)
REWARD = "boxed"
SHOTS = (
    (
        "Find the slope of the tangent to $y = x^3 - 4x$ at $x = 2$.",
        "The derivative is $y' = 3x^2 - 4$. At $x = 2$ it is $3 \\cdot 4 - 4 = 8$. The answer is \\boxed{8}.",
    ),
    (
        "Two fair dice are rolled. What is the probability that the larger of the two numbers is $3$?",
        "Both numbers must be at most $3$, which $9$ of the $36$ rolls satisfy, but not both at most $2$, as in $4$ of "
        "them. That leaves $9 - 4 = 5$ rolls. The answer is \\boxed{\\frac{5}{36}}.",
    ),
    (
        "A stone falls from rest for $3$ seconds. With $g = 9.8\\,\\mathrm{m/s^2}$ and without air, how many meters "
        "does it fall?",
        "From rest it falls $\\frac{1}{2} g t^2 = \\frac{1}{2} \\cdot 9.8 \\cdot 9 = 44.1$ meters. "
        "The answer is \\boxed{44.1}.",
    ),
    (
        "Factor $x^4 - 5x^2 + 4$ completely over the integers.",
        "In $x^2$ the polynomial is $(x^2 - 1)(x^2 - 4)$, and both factors are differences of squares. "
        "The answer is \\boxed{(x-1)(x+1)(x-2)(x+2)}.",
    ),
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the worked problems, then the question."""
    examples = "".join(f"Problem:\n{question}\n\nSolution:\n{steps}\n\n" for question, steps in SHOTS)
    return f"{examples}Problem:\n{problem.question}\n\nSolution:"


def demonstration(problem: Problem) -> str | None:
    """Return the solution in the format of the examples; None without a worked solution or an answer."""
    solution = build_boxed_solution(problem)
    return None if solution is None else f"\n{solution}"
