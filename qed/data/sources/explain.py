"""Explain why data has no problems: which columns there are, what is looked for, and the nearest known schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qed.data.sources.rows import Place, Row
from qed.errors import suggest_nearest

# The columns of the known schemas; of names with a bar, one is enough.
KNOWN = {
    "question and answer": ("question|problem", "answer|final_answer|expected_answer|gold|ground_truth|solution"),
    "question and reply": ("question|problem|query|input", "response|output"),
    "prompt and reply": ("prompt", "completion|response|target"),
    "messages": ("messages",),
    "ShareGPT": ("conversations",),
    "Alpaca": ("instruction", "output|response"),
    "preferences": ("chosen", "rejected"),
    "labelled replies (KTO)": ("prompt", "completion", "label"),
    "verl": ("prompt", "reward_model"),
    "multiple choice": ("question", "choices|options", "answer|answerKey"),
    "axolotl input_output": ("segments",),
}


def describe_nearest(row: Row) -> str:
    """Return a sentence about the known schema that shares most columns with a row; an empty text if none does."""
    names = [str(key).casefold() for key in row]
    missing = {
        schema: [column for column in columns if not set(column.split("|")) & set(names)]
        for schema, columns in KNOWN.items()
    }
    best, absent = min(missing.items(), key=lambda item: len(item[1]) / len(KNOWN[item[0]]))
    if len(absent) in (0, len(KNOWN[best])):
        return ""
    lacking = " and ".join(column.replace("|", " or ") for column in absent)
    return f" The nearest known schema is {best}; it also needs {lacking}.{suggest_nearest(absent[0], names)}"


def explain_no_problems(rows: Sequence[tuple[Place, Row]], schema: str, reasons: Mapping[str, int]) -> str:
    """Return why none of the rows is a problem.

    Args:
        rows: the first and the last row.
        schema: the schema in which the first one was read.
        reasons: counts of the rows that are left out, by reason.
    """
    (first, row), (last, _) = rows[0], rows[-1]
    place = f"{first}" if first == last else f"{first.source}, rows {first.number} to {last.number}"
    counts = "; ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    columns = ", ".join(map(str, row)) or "(none)"
    return (
        f"{place}: no problems, because all rows are left out: {counts}. The columns are {columns}, read as {schema}."
    )
