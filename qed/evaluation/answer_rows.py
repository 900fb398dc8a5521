"""Rows of stored answers: their columns, lists of answers in one row, and rows with answers to the same problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from qed.data.sources.rows import Place, Row, Rows, has_bytes
from qed.errors import DataError, suggest_nearest
from qed.evaluation.answer_lists import is_list, require_answers, split_answers

GOLD = ("gold", "answer", "ground_truth", "expected_answer", "reward_model.ground_truth", "gts", "target", "solution")
RESPONSE = ("prediction", "response", "text", "completion", "output", "generated_text", "generation", "model_output")
CHECKED = 1_000  # rows whose lists are checked before the first answer is graded
ID = ("id", "unique_id", "problem_id", "group_id")
QUESTION = ("question", "problem", "prompt", "input")

Group = list[tuple[Place, Row]]  # rows with answers to one problem


def group_rows(rows: Rows) -> Iterator[Group]:
    """Yield together the answers of a row's list, and consecutive rows with the same id and the same question.

    Raises:
        DataError: a row is broken; the rows before it have been yielded.
    """
    group: Group = []
    last = None
    try:
        for place, row in rows:
            key = _identify(place, row)
            if group and key != last:
                yield group
                group = []
            group.append((place, row))
            last = key
    except DataError:
        if group:
            yield group
        raise
    if group:
        yield group


def _identify(place: Place, row: Row) -> tuple[Any, ...]:
    own = next((name for name in ID if row.get(name) is not None), None)
    question = next((row[name] for name in QUESTION if row.get(name) is not None), "")
    return place.source, str(row[own]) if own else place.number, str(question)


def check_lists(rows: Rows, keys: tuple[str, str], lists: str = "") -> list[tuple[Place, Row]]:
    """Check the lists of answers in the first rows, and return these rows; see `expand_lists`.

    Raises:
        DataError: a column does not exist, or the lists look like one answer in parts.
    """
    first = list(islice(rows, CHECKED))
    if not lists:
        require_answers((place, read_value(place, row, keys[1], RESPONSE, "--response-key")) for place, row in first)
    return first


def expand_lists(rows: Rows, keys: tuple[str, str], lists: str = "") -> Rows:
    """Yield a row for each answer: a row with a list of k answers becomes k rows with a `sample_id`.

    Args:
        rows: rows with their places.
        keys: columns of the gold and of the answer, see `grade_groups`.
        lists: what a list is, see `split_answers`.

    Raises:
        DataError: a column does not exist, or the meaning of a list is ambiguous.
    """
    rows = iter(rows)
    yield from expand_checked(chain(check_lists(rows, keys, lists), rows), keys, lists)


def expand_checked(rows: Rows, keys: tuple[str, str], lists: str = "") -> Rows:
    """Expand rows as `expand_lists` does, without checking the first ones."""
    for place, row in rows:
        name, value = locate_value(place, row, keys[1], RESPONSE, "--response-key")
        if not is_list(value):
            yield place, row
            continue
        answers = split_answers(place, value, read_value(place, row, keys[0], GOLD, "--gold-key"), lists)
        for number, answer in enumerate(answers):
            yield place, {**row, name: answer, "sample_id": number}


def read_value(place: Place, row: Row, key: str, known: Sequence[str], option: str) -> Any:
    """Read a column of a row, or the first known one; a dot accesses a nested column.

    Raises:
        DataError: the column does not exist, or contains bytes.
    """
    name, value = locate_value(place, row, key, known, option)
    if not isinstance(value, str) and has_bytes(value):
        raise DataError(f"{place}: {name} has bytes that are not UTF-8 text: {str(value)[:80]}")
    return value


def locate_value(place: Place, row: Row, key: str, known: Sequence[str], option: str) -> tuple[str, Any]:
    """Return the name and the value of a column of a row, or of the first known one.

    Raises:
        DataError: the column does not exist.
    """
    for name in (key,) if key else known:
        *outer, last = [name] if name in row else name.split(".")
        inner: Any = row
        for part in outer:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and last in inner:
            return name, inner[last]
    wanted = key or (known[0] if len(known) == 1 else f"of the known names ({', '.join(known)})")
    raise DataError(
        f"{place}: there is no column {wanted}; the columns are {', '.join(map(str, row))}. Name yours with {option}."
        + suggest_nearest(key or known[0], map(str, row))
    )
