"""Few-shot: four worked word problems before the question; works with any base model."""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP = ("\n\nQuestion:",)
REWARD = "accuracy"
SHOTS = (
    (
        "A baker fills 6 trays with 15 rolls each and drops 8 of the rolls on the floor. How many rolls are left?",
        "The trays hold 6 * 15 = 90 rolls. Without the dropped ones, 90 - 8 = 82 rolls are left.",
        "82",
    ),
    (
        "Mira walks to school and back on 5 days a week. The way to school is 3 kilometers. How many kilometers does "
        "she walk in 4 weeks?",
        "There and back is 2 * 3 = 6 kilometers. In a week that is 5 * 6 = 30 kilometers, in 4 weeks 4 * 30 = 120.",
        "120",
    ),
    (
        "A cinema ticket costs $12, and a child pays half of that. What do 2 adults and 3 children pay together?",
        "A child pays 12 / 2 = 6 dollars. The adults pay 2 * 12 = 24 dollars and the children 3 * 6 = 18 dollars, "
        "together 24 + 18 = 42 dollars.",
        "42",
    ),
    (
        "Of the 240 seats in a hall, a third are empty and 25 are taken by guests of the house. All others were sold. "
        "How many seats were sold?",
        "Empty are 240 / 3 = 80 seats, so 240 - 80 = 160 are taken. Without the guests, 160 - 25 = 135 were sold.",
        "135",
    ),
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the worked problems, then the question."""
    examples = "".join(f"Question: {q}\nAnswer: {steps} The answer is {gold}.\n\n" for q, steps, gold in SHOTS)
    return f"{examples}Question: {problem.question}\nAnswer:"


def demonstration(problem: Problem) -> str | None:
    """Return the solution in the format of the examples; None without a worked solution or an answer."""
    return f" {problem.solution} The answer is {problem.answer}." if problem.solution and problem.answer else None
