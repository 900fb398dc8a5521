"""What a row says in the words of the house, and how single values are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qed.data.sources.rows import Place, Row
from qed.errors import DataError
from qed.grading.extract import find_last_boxed
from qed.randomness import derive_seed
from qed.types import Problem

# One name in `meta` for what the datasets call by many.
SUBJECT = ("subject", "type", "category", "subfield", "subdomain", "data_topic", "problem_type", "solution_type")
SOURCE = ("source", "data_source", "problem_source", "dataset")


class SkippedRow(Exception):
    """A row that is no problem, for a reason that is counted."""


@dataclass(frozen=True)
class Fields:
    """A row's question, answer, worked solution and whole demonstration; `used` are the columns that they came from."""

    question: str
    answer: str = ""
    solution: str = ""
    completion: str = ""
    used: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def build_problem(found: Fields, row: Row, prefix: str) -> Problem:
    """A problem with a stable id. Columns that mean nothing to us go into `meta` as they are."""
    meta = {key: value for key, value in row.items() if key and key not in found.used and value is not None}
    _rename(meta, "subject", SUBJECT)
    _rename(meta, "source", SOURCE)
    _rename(meta, "level", ("level",))
    if isinstance(level := meta.get("level"), str) and level.removeprefix("Level ").isdigit():
        meta["level"] = int(level.removeprefix("Level "))
    meta.update(found.extra)
    if found.completion:
        meta["completion"] = found.completion
    solution = found.solution.strip()
    answer = (found.answer or find_last_boxed(solution) or "").strip()
    # Several solutions of one question are several demonstrations, several worse replies are several preferences; only
    # a row that stands twice has the same id.
    worse = [found.extra["rejected"]] if "rejected" in found.extra else []
    address = derive_seed(found.question.strip(), answer, solution, found.completion, *worse)
    return Problem(f"{prefix}-{address:016x}", found.question.strip(), answer, solution, meta)


def _rename(meta: dict[str, Any], ours: str, names: tuple[str, ...]) -> None:
    theirs = [key for name in names for key in meta if key.casefold() == name]
    if theirs:
        meta[ours] = meta.pop(theirs[0])


def find_column(row: Row, names: tuple[str, ...]) -> str | None:
    """The first column of these names that a row has, whatever its capitals."""
    if found := next((name for name in names if name in row), None):
        return found
    folded = {str(key).casefold(): key for key in row}
    return next((folded[name] for name in names if name in folded), None)


def find_filled_column(row: Row, names: tuple[str, ...]) -> str | None:
    """The first column of these names in which a row has something."""
    return find_column({key: value for key, value in row.items() if value not in (None, "", [])}, names)


def convert_to_text(value: Any, place: Place, key: str) -> str:
    """A value as text: a whole number without its `.0`.

    Raises:
        DataError: it is no text and no number.
    """
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise DataError(f"{place}: {key} holds half of a UTF-16 pair, which is no text.")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{place}: {key} is {type(value).__name__}, not text: {str(value)[:80]}")
    if not math.isfinite(value):
        raise DataError(f"{place}: {key} is {value}, which is neither text nor a number.")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def convert_answer(value: Any, place: Place, key: str) -> str:
    """A gold answer, which some benchmarks give as a list of all that are asked for."""
    if isinstance(value, list | tuple):
        parts = [convert_to_text(part, place, key).strip() for part in value]
        return parts[0] if len(parts) == 1 else ", ".join(part.strip("$") for part in parts)
    return convert_to_text(value, place, key)


def convert_solution(value: Any, place: Place, key: str) -> str:
    """A worked solution; of several, the first."""
    if isinstance(value, list | tuple):
        value = value[0] if value else ""
    return convert_to_text(value, place, key)
