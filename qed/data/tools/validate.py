"""Check whether every row of a file can be used; errors and remarks name the row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from qed.config.task_names import parse_task
from qed.console.progress import report_progress, say_on_stderr
from qed.data.prompts.demonstrations import find_reply
from qed.data.questions import normalize_question
from qed.data.sources import fields, local, schemas
from qed.data.sources.fields import SkippedRow
from qed.data.sources.rows import Place, Row
from qed.data.tasks.base import fold_repeats
from qed.data.tools.inspect import explain_unreadable
from qed.errors import DataError
from qed.types import Problem

MAX_LINES = 20  # lines to list of each kind; the others are counted
SUBSTITUTE = "\ufffd"  # the replacement character of a decoder


class Issue(NamedTuple):
    """An error or a remark about a row."""

    place: Place
    reason: str


def group_issues(issues: Sequence[Issue]) -> list[str]:
    """Format issues as lines: rows with the same issue share a line, which names the first twenty of them.

    An issue of a whole file becomes a line that names only the file.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    for place, reason in issues:
        rows.setdefault((place.source, reason), []).append(place.number)
    lines = []
    for (source, reason), numbers in rows.items():
        if numbers[0] == 0:
            lines.append(reason if reason.startswith(source) else f"{source}: {reason}")
            continue
        named = f"{', '.join(map(str, numbers[:MAX_LINES]))}"
        more = f" and {len(numbers) - MAX_LINES:,} more" if len(numbers) > MAX_LINES else ""
        lines.append(f"{source}, row{'s' * (len(numbers) > 1)} {named}{more}: {reason}")
    return lines


@dataclass
class FileCheck:
    """The result of checking one file, or the files of one folder.

    Attributes:
        file: the file or folder.
        rows: number of rows.
        errors: issues that make rows unusable.
        remarks: issues of usable rows: duplicates, answers that the grader cannot read, lost characters.
        left_out: counts of rows that loading skips, by reason.
        schemas: counts of rows by schema.
        unreadable: number of answers that the grader cannot read.
    """

    file: Path
    rows: int = 0
    errors: list[Issue] = field(default_factory=list)
    remarks: list[Issue] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    schemas: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        return {
            "file": str(self.file),
            "rows": self.rows,
            "schemas": dict(self.schemas),
            "errors": len(self.errors),
            "remarks": len(self.remarks),
            "unreadable_answers": self.unreadable,
            "left_out": dict(self.left_out),
            "first_errors": group_issues(self.errors)[:MAX_LINES],
            "first_remarks": group_issues(self.remarks)[:MAX_LINES],
        }


def validate_file(file: Path, mapping: Mapping[str, str]) -> FileCheck:
    """Check every row of a file, or of the files of a folder.

    Raises:
        UsageError: the mapping names a column that qed does not have.
        DataError: the file does not exist.
    """
    task = parse_task(str(file))
    file, mapping = Path(task.path or file), task.columns or mapping
    check = FileCheck(file)
    read: list[tuple[Place, Problem]] = []
    rows = chain.from_iterable(map(local.check_rows, local.list_files(file)))
    for _, (place, row) in report_progress(rows, say_on_stderr, "Checking", f"rows of {file}"):
        _check_row(place, row, mapping, check, read)
    if not check.rows and not check.errors:
        check.errors.append(Issue(Place(str(file), 0), f"the {'folder' if file.is_dir() else 'file'} has no rows."))
    _add_duplicate_remarks(read, check)
    return check


def _check_row(
    place: Place,
    row: Row | DataError,
    mapping: Mapping[str, str],
    check: FileCheck,
    read: list[tuple[Place, Problem]],
) -> None:
    """Check a row, or count why it could not be read; append its problem to `read`."""
    check.rows += place.number > 0
    try:
        if isinstance(row, DataError):
            raise row
        read.append((place, _read_problem(place, row, mapping, check)))
    except SkippedRow as reason:
        check.left_out[str(reason)] += 1
    except DataError as error:
        check.errors.append(Issue(place, str(error).removeprefix(f"{place}: ")))


def _read_problem(place: Place, row: Row, mapping: Mapping[str, str], check: FileCheck) -> Problem:
    row = schemas.rename_columns(row, mapping, place) if mapping else row
    if odd := next(_find_not_finite(row), ""):
        raise DataError(f"{place}: {odd} is not a finite number (NaN or infinity).")
    problem = fields.build_problem(schemas.read_fields(row, place), row, str(check.file))
    check.schemas[schemas.name_schema(row)] += 1
    if not problem.answer and not find_reply(problem):
        raise DataError(f"{place}: there is no answer and no demonstration.")
    if problem.answer and (trouble := explain_unreadable(problem.answer)):
        check.unreadable += 1
        reason = f"the grader cannot read the answer {problem.answer[:80]!r}: {trouble}."
        check.remarks.append(Issue(place, reason))
    if SUBSTITUTE in f"{problem.question}{problem.answer}{problem.solution}{problem.meta.get('completion', '')}":
        check.remarks.append(Issue(place, f"a character was lost when the text was decoded ({SUBSTITUTE})."))
    return problem


def _find_not_finite(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths (column.column) of non-finite numbers in a row."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _find_not_finite(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _find_not_finite(inner, path)


def _add_duplicate_remarks(read: list[tuple[Place, Problem]], check: FileCheck) -> None:
    """Add remarks for duplicate rows and questions with two answers, but not for benchmarks that repeat every row."""
    repeated = {problem.id for problem in fold_repeats([problem for _, problem in read]) if "k" in problem.meta}
    first: dict[str, Place] = {}
    questions: dict[str, tuple[Place, str]] = {}
    for place, problem in read:
        if (before := first.setdefault(problem.id, place)) is not place:
            if problem.id not in repeated:
                check.remarks.append(Issue(place, f"the same as {_name_row(before, place)}."))
            continue
        where, answer = questions.setdefault(normalize_question(problem.question), (place, problem.answer))
        if answer != problem.answer:
            check.remarks.append(Issue(place, f"the same question as {_name_row(where, place)}, with another answer."))


def _name_row(place: Place, beside: Place) -> str:
    """Return the name of a row for a remark about another one, including its file if that differs."""
    return f"row {place.number}" if place.source == beside.source else str(place)
