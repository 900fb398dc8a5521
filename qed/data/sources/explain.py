"""Explain why data has no problems: its columns, the expected columns, and the nearest known schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from qed.data.sources.rows import Place, Row
from qed.errors import suggest_nearest
from qed.host import set_context

# The columns of the known schemas; a bar separates alternatives.
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


# The option that names the columns of a file, and whether it takes OURS=THEIRS or only the column of the question.
_column_option: ContextVar[tuple[str, bool]] = ContextVar("column_option", default=("--data.map", True))


@contextmanager
def use_column_option(option: str, pairs: bool = True) -> Iterator[None]:
    """Let messages about missing columns name this option instead of training's --data.map.

    Args:
        option: option of the command that reads the data.
        pairs: whether it takes OURS=THEIRS,…; otherwise it takes the column of the question.
    """
    with set_context(_column_option, (option, pairs)):
        yield


def describe_expected(questions: Sequence[str], answers: Sequence[str], schemas: str) -> str:
    """Describe the expected columns: those of a question, and those of an answer if the command needs one."""
    _, pairs = _column_option.get()
    if pairs:
        return f"expected one of {', '.join(questions)} and one of {', '.join(answers)}; or {schemas}"
    return f"expected one of {', '.join(questions)}; or {schemas}"


def suggest_column_option(hints: Mapping[str, str]) -> tuple[str, str]:
    """Return how to name the columns of a file, and a sentence with the likely ones, or an empty string.

    Args:
        hints: qed's missing columns, each with the column of the file that is probably meant.
    """
    option, pairs = _column_option.get()
    usage = "question=YOURS,answer=YOURS" if pairs else "YOURS"
    example = "question=problem" if pairs else "problem"
    named = ",".join(f"{ours}={theirs}" for ours, theirs in hints.items()) if pairs else hints.get("question", "")
    how = f"Name yours with {option} {usage}, for example {option} {example}."
    return how, f" Perhaps: {option} {named}" if named else ""


def describe_nearest(row: Row) -> str:
    """Return a sentence about the known schema that shares the most columns with a row; empty if none does."""
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


def format_reasons(reasons: Mapping[str, int]) -> str:
    """Format the number of left-out rows for each reason; reasons with a count of 0 are not named."""
    return "; ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)


def explain_no_problems(rows: Sequence[tuple[Place, Row]], schema: str, reasons: Mapping[str, int]) -> str:
    """Return why none of the rows is a problem.

    Args:
        rows: the first and the last row.
        schema: the schema in which the first one was read.
        reasons: counts of the skipped rows, by reason.
    """
    (first, row), (last, _) = rows[0], rows[-1]
    place = f"{first}" if first == last else f"{first.source}, rows {first.number} to {last.number}"
    columns = ", ".join(map(str, row)) or "(none)"
    return (
        f"{place}: no problems, because all rows are left out: {format_reasons(reasons)}. The columns are {columns}, "
        f"read as {schema}."
    )
