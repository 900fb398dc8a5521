"""Few-shot: five answered multiple-choice questions of five subjects before the question; for any base model."""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP = ("\n",)
REWARD = "multiple_choice"
SHOTS = (
    ("Which of these numbers is a prime?\n\nA) 21\nB) 27\nC) 29\nD) 33", "C"),
    (
        "Which gas do green plants take from the air?\n\nA) Carbon dioxide\nB) Oxygen\nC) Helium\nD) Neon",
        "A",
    ),
    ("In which country does the Danube rise?\n\nA) Austria\nB) Romania\nC) Hungary\nD) Germany", "D"),
    (
        "A shop raises a price by 10 % and later lowers it by 10 %. Compared with the first price, the last one is\n\n"
        "A) the same\nB) lower\nC) higher\nD) impossible to tell",
        "B",
    ),
    ("Which of these words is an adverb?\n\nA) Quick\nB) Quickness\nC) Quickly\nD) Quicken", "C"),
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the answered questions, then the question, whose text contains its options."""
    shown = "".join(f"Question: {question}\nAnswer: {letter}\n\n" for question, letter in SHOTS)
    return (
        f"Each question has one right option. Answer with its letter.\n\n{shown}Question: {problem.question}\nAnswer:"
    )


def demonstration(problem: Problem) -> str | None:
    """Return the letter of the answer."""
    return f" {problem.answer}" if problem.answer else None
