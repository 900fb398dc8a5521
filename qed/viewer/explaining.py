"""Explain how the grader compares an answer with the gold answer, step by step."""

from __future__ import annotations

import json
from typing import Any

from qed.viewer.answers import read_text, select_row
from qed.viewer.child import call_in_child
from qed.viewer.cleaning import clean_value
from qed.viewer.library import Library
from qed.viewer.params import Params
from qed.viewer.where import find_where

SECONDS = 20.0
MAX_CHARACTERS = 4_000  # of a gold or an extracted answer
# Graders other than qed's, by the tier of their verdicts.
OTHERS = {
    "": "a reward that names no tier, such as your own",
    "http": "a server",
    "model": "a reward model",
    "foreign": "a function of the caller",
}
STORED = ("correct", "tier", "reason", "extracted")


def explain_answer(library: Library, params: Params) -> dict[str, Any]:
    """Return how the grader parses the gold and the extracted answer and which tier decides, and the stored verdict.

    Args:
        library: the runs.
        params: those of `read_answer`.

    Raises:
        Refused: there is no such answer, or the grader takes too long.
    """
    where = find_where(library, params)
    row, _ = select_row(where, params.number("group"), params.number("answer"), texts_only=True)
    stored = {name: clean_value(row.get(name)) for name in STORED}
    gold, extracted = read_text(row, "gold"), row.get("extracted")
    if why := _explain_absence(gold, extracted, str(row.get("tier"))):
        return {"gold": None, "answer": None, "correct": None, "tier": "", "reason": why, "stored": stored}
    message = f"The grader could not compare these answers within {SECONDS:g} s."
    texts = gold[:MAX_CHARACTERS], read_text(row, "extracted")[:MAX_CHARACTERS]
    return {**call_in_child(_explain, texts, SECONDS, message), "stored": stored}


def _explain_absence(gold: str, extracted: Any, tier: str) -> str:
    """Return why the grader has no steps to show; empty if it has some."""
    if tier in OTHERS:
        return f"This answer was graded by {OTHERS[tier]}; the viewer does not know its steps."
    if not gold:
        return "The problem has no gold answer."
    return "No answer was found in the text." if extracted is None else ""


def _explain(gold: str, answer: str) -> dict[str, Any]:
    from qed.grading.explain import explain  # noqa: PLC0415 -- slow, and needed only in the child process

    explained: dict[str, Any] = json.loads(explain(gold, answer, as_json=True))
    return explained
