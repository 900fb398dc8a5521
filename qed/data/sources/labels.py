"""Recognise replies that are labelled as bad (KTO data, verified generations), which are never imitated."""

from __future__ import annotations

from typing import Any, NoReturn

from qed.data.sources.fields import ANSWER, SkippedRow, find_column, find_filled_column
from qed.data.sources.rows import Place, Row

LABELS = ("label", "kto_tag", "is_correct")  # of TRL and axolotl, of LLaMA-Factory, of OpenMathInstruct
REPLIES = ("completion", "response", "output", "messages", "conversations", "generated_solution", "target")
GOLDS = (*ANSWER, "solution", "choices", "options", "reward_model")


def has_bad_reply(row: Row) -> bool:
    """Return whether a row's label says that its reply is bad.

    False is unambiguous. A label of 0 or -1 may also be the class of a question, so it counts only with a reply and
    without a gold answer.
    """
    key = find_column(row, LABELS)
    label = _normalize(row[key]) if key else ""
    if label == "false":
        return find_filled_column(row, (*REPLIES, *GOLDS)) is not None
    bad = label in ("0", "-1")
    return bad and find_filled_column(row, REPLIES) is not None and find_filled_column(row, GOLDS) is None


def skip_bad_reply(row: Row, place: Place) -> NoReturn:
    """Raise SkippedRow with the label."""
    key = find_column(row, LABELS) or ""
    raise SkippedRow(f"replies that {key} calls bad ({row[key]})")


def _normalize(label: Any) -> str:
    """Return a label as text: 0, 0.0 and "0" are the same, but False is not 0."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return str(label).strip().casefold().removesuffix(".0")
