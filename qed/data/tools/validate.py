"""Whether every row of a file can be used, and what is odd about it, each named by its row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from qed.data.sources import fields, local, schemas
from qed.data.sources.fields import SkippedRow
from qed.data.sources.rows import Place, Row
from qed.data.tasks.base import fold_repeats
from qed.data.tools.filters import normalize_question
from qed.data.tools.inspect import explain_unreadable
from qed.errors import DataError
from qed.types import Problem

MOST = 20  # complaints of a kind that are listed; the others are counted
SUBSTITUTE = "\ufffd"  # what a decoder writes for bytes that it could not read


class Issue(NamedTuple):
    """What is wrong with a row."""

    place: Place
    reason: str


def group_issues(complaints: Sequence[Issue]) -> list[str]:
    """Complaints as lines, rows with the same one on one line, of which the first twenty are named."""
    rows: dict[tuple[str, str], list[int]] = {}
    for place, reason in complaints:
        rows.setdefault((place.source, reason), []).append(place.number)
    lines = []
    for (source, reason), numbers in rows.items():
        named = f"{', '.join(map(str, numbers[:MOST]))}"
        more = f" and {len(numbers) - MOST:,} more" if len(numbers) > MOST else ""
        lines.append(f"{source}, row{'s' * (len(numbers) > 1)} {named}{more}: {reason}")
    return lines


@dataclass
class FileCheck:
    """What was found in one file.

    Attributes:
        file: that was read.
        rows: how many it has.
        errors: what makes rows unusable, each with its place.
        remarks: what is odd but usable: repeats, answers that the grader cannot read, signs that were lost.
        left_out: rows that are no problem, which loading skips, by their reason.
    """

    file: Path
    rows: int = 0
    errors: list[Issue] = field(default_factory=list)
    remarks: list[Issue] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    schemas: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "file": str(self.file),
            "rows": self.rows,
            "schemas": dict(self.schemas),
            "errors": len(self.errors),
            "remarks": len(self.remarks),
            "unreadable_answers": self.unreadable,
            "left_out": dict(self.left_out),
            "first_errors": group_issues(self.errors)[:MOST],
            "first_remarks": group_issues(self.remarks)[:MOST],
        }


def validate_file(file: Path, mapping: Mapping[str, str]) -> FileCheck:
    """Check every row of a file.

    Raises:
        UsageError: the mapping names a column of ours that there is not.
    """
    if not file.is_file():
        raise DataError(f"There is no file {file} to validate.")
    found = FileCheck(file)
    read: list[tuple[Place, Problem]] = []
    for place, row in local.check_rows(file):
        found.rows += 1
        if isinstance(row, DataError):
            found.errors.append(Issue(place, str(row).removeprefix(f"{place}: ")))
            continue
        try:
            read.append((place, _read_problem(place, row, mapping, found)))
        except SkippedRow as reason:
            found.left_out[str(reason)] += 1
        except DataError as error:
            found.errors.append(Issue(place, str(error).removeprefix(f"{place}: ")))
    if not found.rows:
        found.errors.append(Issue(Place(str(file), 1), "the file has no rows."))
    _remark_repeats(read, found)
    return found


def _read_problem(place: Place, row: Row, mapping: Mapping[str, str], found: FileCheck) -> Problem:
    row = schemas.rename_columns(row, mapping, place) if mapping else row
    if odd := next(_find_not_finite(row), ""):
        raise DataError(f"{place}: {odd} is not a finite number (NaN or infinity).")
    problem = fields.build_problem(schemas.read_fields(row, place), row, place.source)
    found.schemas[schemas.name_schema(row)] += 1
    if not problem.answer and not problem.meta.get("completion"):
        raise DataError(f"{place}: there is no answer, and nothing to imitate.")
    if problem.answer and (trouble := explain_unreadable(problem.answer)):
        found.unreadable += 1
        reason = f"the grader cannot read the answer {problem.answer[:80]!r}: {trouble}."
        found.remarks.append(Issue(place, reason))
    if SUBSTITUTE in f"{problem.question}{problem.answer}{problem.solution}{problem.meta.get('completion', '')}":
        found.remarks.append(Issue(place, f"a sign was lost when the text was decoded ({SUBSTITUTE})."))
    return problem


def _find_not_finite(value: Any, path: str = "") -> Iterator[str]:
    """Where a row has a number that is none, as column.column."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _find_not_finite(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _find_not_finite(inner, path)


def _remark_repeats(read: list[tuple[Place, Problem]], found: FileCheck) -> None:
    """Rows that stand twice, and questions with two answers; benchmarks that repeat every row mean k answers by it."""
    repeated = {problem.id for problem in fold_repeats([problem for _, problem in read]) if "k" in problem.meta}
    first: dict[str, Place] = {}
    asked: dict[str, tuple[Place, str]] = {}
    for place, problem in read:
        if (before := first.setdefault(problem.id, place)) is not place:
            if problem.id not in repeated:
                found.remarks.append(Issue(place, f"the same as row {before.number}."))
            continue
        where, answer = asked.setdefault(normalize_question(problem.question), (place, problem.answer))
        if answer != problem.answer:
            found.remarks.append(Issue(place, f"the question of row {where.number} with another answer."))
