"""The answers of a step or an evaluation from their index: what tests and figures need, without the texts."""

from __future__ import annotations

import hashlib
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qed.errors import DataError
from qed.runs.run import Row
from qed.runs.step_index import (
    StepIndex,
    build_index,
    name_index,
    read_index,
    read_index_groups,
    read_listed_groups,
    write_index,
)
from qed.types import UNGRADED
from qed.viewer.library import Library
from qed.viewer.memo import FileMemo

# Columns of the groups by which figures are broken down, and their names on pages.
KINDS = {"subject": "subject", "level": "level", "data_source": "source"}
NAMES = ("correct", "format_ok", "extracted", "reward", "n_tokens", "stop_reason", "tier", "class")
PARTS = "parts/"
VERDICTS = ("correct", "format_ok")
MAX_COUNT = 1 << 40
BUILDING = threading.Lock()  # reading a whole file takes seconds, so read one at a time and each only once
INDEXES = FileMemo(24)  # an index of 4,096 answers takes several MB


def load_index(library: Library, data: Path) -> StepIndex | None:
    """Return the index of a file of answers; None if it is damaged or gone."""
    index: StepIndex | None = INDEXES.read(data, [data], lambda: _read_index(library, data))
    return index


def load_groups(library: Library, data: Path) -> list[Row]:
    """Return the groups of a file of answers; none if it is damaged or gone."""
    for path in _list_indexes(library, data):
        groups = read_index_groups(path, data)
        if groups is not None and all("n_graded" in group for group in groups):
            return groups
    index = load_index(library, data)
    return index.groups if index else []


def leave_out_ungraded(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the columns of a training step with no verdict on answers that no grader could judge.

    Metrics leave these answers out too; in an evaluation they count as wrong.
    """
    tiers = columns.get("tier", [])
    changed = {
        name: [None if tier in UNGRADED else value for value, tier in zip(columns[name], tiers, strict=True)]
        for name in VERDICTS
        if tiers and name in columns
    }
    return {**columns, **changed}


def count_lost(library: Library, data: Path, index: StepIndex) -> int:
    """Return how many answers of an index next to the file are missing in the file, for example in a truncated copy."""
    listed = (
        sum(read_count(group.get("n")) for group in read_listed_groups(path)) for path in _list_indexes(library, data)
    )
    return max(0, next(listed, 0) - sum(read_count(group["n"]) for group in index.groups))


def _read_index(library: Library, data: Path) -> StepIndex | None:
    if (index := _find_index(library, data)) is not None:
        return index
    with BUILDING:
        if (index := _find_index(library, data)) is not None:  # another request built it in the meantime
            return index
        try:
            index = build_index(data)
        except (DataError, OSError):
            return None
        with suppress(OSError):
            write_index(_name_cached(library, data), index)
    return index


def _find_index(library: Library, data: Path) -> StepIndex | None:
    for path in _list_indexes(library, data):
        if (index := read_index(path, data)) is not None and _is_sound(index):
            return index
    return None


def _list_indexes(library: Library, data: Path) -> Iterator[Path]:
    """Yield the index next to a file of answers and the one in the cache, if they are regular files: in an untrusted
    folder, a link may lead out of the run, and reading a FIFO may never return."""
    for path in (name_index(data), _name_cached(library, data)):
        with suppress(OSError):
            if stat.S_ISREG(path.lstat().st_mode):
                yield path


def _is_sound(index: StepIndex) -> bool:
    """Return whether every answer of an index, which may be untrusted, belongs to one of its groups."""
    numbers, answers = index.columns.get("group"), index.columns.get("answer")
    if not numbers or not answers:
        return not index.columns
    known = range(len(index.groups))
    return all(type(number) is int and number in known for number in numbers) and all(
        type(answer) is int and answer >= 0 for answer in answers
    )


def read_count(value: Any) -> int:
    """Return a count of an index; 0 for anything else."""
    return value if type(value) is int and 0 <= value < MAX_COUNT else 0


def _name_cached(library: Library, data: Path) -> Path:
    """Return the path of a file's index in the cache, for files without an index next to them."""
    with suppress(OSError):
        changed = data.stat().st_mtime_ns
        name = hashlib.sha256(f"{data}\0{changed}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return library.cache / "indexes" / f"{name}.index.zst"
    return library.cache / "indexes" / "none"


def build_rows(index: StepIndex, decoding: str) -> list[Row]:
    """Build the rows of one decoding, in file order."""
    columns = {name: index.columns[name] for name in NAMES if name in index.columns}
    parts = {name.removeprefix(PARTS): column for name, column in index.columns.items() if name.startswith(PARTS)}
    right = index.columns.get("correct") or [None] * len(index.columns.get("group", ()))
    rows: list[Row] = []
    for row, number in enumerate(index.columns.get("group", ())):
        group = index.groups[number]
        if group.get("decoding") != decoding:
            continue
        rows.append(
            {
                "group_id": str(group.get("id")),
                "gold": group.get("gold"),
                "sample_id": index.columns["answer"][row],
                **{kind: group[kind] for kind in KINDS if group.get(kind) is not None},
                **{name: column[row] for name, column in columns.items()},
                "correct": right[row] is True,
                "parts": {name: column[row] for name, column in parts.items() if column[row] is not None},
            }
        )
    return rows


def number_groups(index: StepIndex, decoding: str) -> dict[str, int]:
    """Return the number of each problem's group of one decoding, by the problem's id."""
    numbers: dict[str, int] = {}
    for number, group in enumerate(index.groups):
        if group.get("decoding") == decoding:
            numbers.setdefault(str(group.get("id")), number)
    return numbers


def split_rows(rows: Sequence[Row], kind: str) -> dict[str, list[Row]]:
    """Split rows by a column; rows without it are left out."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        if row.get(kind) is not None:
            parts.setdefault(str(row[kind]), []).append(row)
    return dict(sorted(parts.items(), key=lambda item: (item[0].isdigit(), len(item[0]), item[0])))
