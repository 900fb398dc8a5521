"""Convert a row's values to qed's fields and problems."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from qed.data.sources.rows import Place, Row
from qed.errors import DataError
from qed.grading.extract import find_last_boxed
from qed.randomness import derive_seed
from qed.types import Problem

# Datasets use different names for these columns; in `meta` they have one.
SUBJECT = ("subject", "type", "category", "subfield", "subdomain", "data_topic", "problem_type", "solution_type")
SOURCE = ("source", "data_source", "problem_source", "dataset")
ANSWER = ("answer", "final_answer", "expected_answer", "gold", "ground_truth")
OWN = ("k", "rendered", "adapt")  # only qed sets these in `meta`: a data column of that name means something else
# Half of a UTF-16 surrogate pair; `re` is about ten times as fast as a loop over the characters.
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class SkippedRow(Exception):
    """Raised for a row that is not a problem; the reason is counted."""


@dataclass(frozen=True)
class Fields:
    """A row's question, answer, worked solution and complete demonstration; `used` names the columns they come from."""

    question: str
    answer: str = ""
    solution: str = ""
    completion: str = ""
    used: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def build_problem(values: Fields, row: Row, prefix: str) -> Problem:
    """Build a problem with a stable id; unknown columns go into `meta` unchanged."""
    used = {"", *values.used, *OWN}
    meta = {key: value for key, value in row.items() if key not in used and value is not None}
    _rename(meta, "subject", SUBJECT)
    _rename(meta, "source", SOURCE)
    _rename(meta, "level", ("level",))
    if "level" in meta:
        meta["level"] = convert_level(meta["level"])
    # If the answer comes from elsewhere, the reader leaves the reply here.
    reply = meta.pop("completion", "")
    completion = values.completion or (reply if isinstance(reply, str) else "")
    meta.update(values.extra)
    if completion:
        meta["completion"] = completion
        # Preferences are compared unchanged; the prompt may reformat any other reply.
        meta |= {} if "chosen" in values.extra else {"adapt": True}
    solution = values.solution.strip()
    answer = _unbox(values.answer.strip()) or (find_last_boxed(solution) or "").strip()
    # Several solutions of a question are separate demonstrations, and several rejected replies separate preferences;
    # only duplicate rows have the same id.
    worse = [values.extra["rejected"]] if "rejected" in values.extra else []
    address = derive_seed(values.question.strip(), answer, solution, completion, *worse)
    return Problem(f"{prefix}-{address:016x}", values.question.strip(), answer, solution, meta)


def _unbox(answer: str) -> str:
    """Return the content of an answer that consists of one box."""
    boxed = find_last_boxed(answer)
    return boxed if boxed and answer.strip("$ .") == f"\\boxed{{{boxed}}}" else answer


def _rename(meta: dict[str, Any], ours: str, names: tuple[str, ...]) -> None:
    theirs = [key for name in names for key in meta if key.casefold() == name]
    if theirs:
        meta[ours] = meta.pop(theirs[0])


def find_column(row: Row, names: tuple[str, ...]) -> str | None:
    """Return the first of these columns that a row has, ignoring case."""
    if column := next((name for name in names if name in row), None):
        return column
    folded = {str(key).casefold(): key for key in row}
    return next((folded[name] for name in names if name in folded), None)


def find_filled_column(row: Row, names: tuple[str, ...]) -> str | None:
    """Return the first of these columns that is not empty in a row, ignoring case."""
    return find_column({key: value for key, value in row.items() if value not in (None, "", [])}, names)


def convert_level(value: Any) -> Any:
    """Return the number of a level, such as 5 for MATH's `Level 5`; another value is returned unchanged."""
    number = value.removeprefix("Level ") if isinstance(value, str) else ""
    return int(number) if number.isdecimal() else value


def convert_to_text(value: Any, place: Place, key: str) -> str:
    """Convert a value to text; whole numbers lose their `.0`.

    Raises:
        DataError: the value is neither text nor a finite number.
    """
    if isinstance(value, str):
        if not value.isascii() and LONE_SURROGATE.search(value):
            raise DataError(f"{place}: {key} contains half of a UTF-16 pair, which is not valid text.")
        return value
    if isinstance(value, Decimal) and value.is_finite():  # from a table, with the decimal places of the column's type
        text = f"{value:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{place}: {key} is {type(value).__name__}, not text: {str(value)[:80]}")
    if isinstance(value, float):  # a whole number may be too large for math.isfinite
        if not math.isfinite(value):
            raise DataError(f"{place}: {key} is {value}, which is neither text nor a number.")
        return str(int(value)) if value.is_integer() else str(value)
    try:
        return str(value)
    except ValueError as error:
        raise DataError(f"{place}: {key} is a whole number with too many digits ({error}).") from error


def convert_answer(value: Any, place: Place, key: str) -> str:
    """Convert a gold answer to text; some benchmarks give a list of all required answers."""
    if isinstance(value, list | tuple):
        parts = [convert_to_text(part, place, key).strip() for part in value]
        return parts[0] if len(parts) == 1 else ", ".join(part.strip("$") for part in parts)
    return convert_to_text(value, place, key)


def read_answer(row: Row, place: Place) -> tuple[str, str]:
    """Return the column of a row's gold answer and the answer; two empty strings if there is none."""
    key = find_filled_column(row, ANSWER)
    return (key, convert_answer(row[key], place, key)) if key else ("", "")


def read_answer_beside_reply(row: Row, place: Place) -> tuple[str, str]:
    """Read the answer like `read_answer`, but ignore one that is neither text nor number: the reply may be enough."""
    try:
        return read_answer(row, place)
    except DataError:
        return "", ""


def convert_solution(value: Any, place: Place, key: str) -> str:
    """Convert a worked solution, or the first of several, to text."""
    if isinstance(value, list | tuple):
        value = value[0] if value else ""
    return convert_to_text(value, place, key)
