"""Correct when the text chooses the letter of the gold answer, which is a letter or the words of one of the choices.

The letter is that of the final answer: `C`, `(C)`, `C) 12`, `\\text{C}`, `option C`, or the words of a choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from qed.grading.extract import extract_final_answer
from qed.types import Grade, Problem, Rollout

LETTERS = "ABCDEFGHIJ"
# Each piece before the letter may occur once, so the search never backtracks.
CHOICE = re.compile(
    r"[\s$*]{0,4}(?:\\(?:text|mathrm|mathbf|textbf)\{)?(?:option |choice )?[(\[]?([A-J])(?:[)\].:,}$*]|$)",
    re.IGNORECASE,
)


def reward(rollout: Rollout) -> Grade:
    """Reward = correct; the format holds when a letter was chosen."""
    problem = rollout.problem
    chosen = find_letter(rollout.text, list_choices(problem))
    correct = chosen is not None and chosen == _match_letter(problem.answer, list_choices(problem))
    reason = "no letter chosen" if chosen is None else "the same choice" if correct else "another choice"
    return Grade(float(correct), correct, chosen is not None, chosen, {"correct": float(correct)}, "string", reason)


def find_letter(text: str, choices: Sequence[str] = ()) -> str | None:
    """Return the letter that the final answer of a text chooses, by name or by the words of a choice; else None."""
    extracted = extract_final_answer(text)
    return _match_letter(extracted.answer, choices) if extracted else None


def list_choices(problem: Problem) -> list[str]:
    """Return the texts of a problem's choices; none if it is not multiple choice."""
    choices = problem.meta.get("choices")
    return [str(choice) for choice in choices] if isinstance(choices, list | tuple) else []


def _match_letter(answer: str, choices: Sequence[str]) -> str | None:
    """Return the letter that an answer names, or that of the choice with its words."""
    match = CHOICE.match(answer.strip())
    if match:
        return match.group(1).upper()
    words = [_normalize_words(choice) for choice in choices]
    index = words.index(_normalize_words(answer)) if words.count(_normalize_words(answer)) == 1 else len(LETTERS)
    return LETTERS[index] if index < len(LETTERS) else None


def _normalize_words(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .")
