"""The index of a step's answers: where each group is, and a table of all answers without their texts and tokens.

    rollouts/step_000010.index.zst   two zstd frames of JSON: the size of the data file with its groups, then the table

A viewer lists and sorts the answers of a step by its index, and reads only the groups that it shows. `build_index`
builds an index for any file of answers: one without an index, one compressed as a single frame, or the plain JSON lines
of an evaluation.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import zstandard

from qed.errors import DataError
from qed.runs.answer_cells import CELL, cut, list_cells
from qed.runs.step_file import (
    ANSWERS,
    SUFFIX,
    FrameReader,
    Row,
    compress_frame,
    compress_rows,
    encode_line,
    encode_lines,
    explain_damage,
    iterate_lines,
    parse_row,
    read_span,
    split_lines,
)
from qed.types import UNGRADED

SCHEMA = 1
MAX_GROUP = 1 << 30  # bytes of a group's rows
MAX_SKIP = 1 << 34  # bytes of a frame before a group, which are decompressed with it
MAX_LINES = 1 << 20  # of a file; a small compressed file may expand to an enormous number of lines
MAX_COLUMNS = 100  # a damaged file may name any number of reward parts
TEXT = 300  # characters of a group's question and answer in the index
LABELS = ("subject", "level", "data_source", "decoding")
REWARDS = ("reward_mean", "reward_min", "reward_max")
TOKENS = b', "tokens": ['
PLACES = ("offset", "length", "skip", "size", "n")


@dataclass(frozen=True)
class StepIndex:
    """Where the groups of a file of answers are, and a table of its answers.

    `bytes` is the size of the file. A group has `id`, `question`, `gold`, its `LABELS`, the `offset` and `length` of
    its frames in the file, the `skip` and `size` of its lines in their content, and `n`, `n_right`, `reward_mean`,
    `reward_min` and `reward_max` of its answers; `n_graded` and `n_graded_right` count only those that a grader could
    judge. Each column has a value for every answer, in file order.
    """

    bytes: int
    groups: list[Row] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)


class IndexBuilder:
    """Collects an index while the groups of a file are written or read one after the other."""

    def __init__(self) -> None:
        self.groups: list[Row] = []
        self.columns: dict[str, list[Any]] = {}
        self._count = 0  # the number of all answers
        self._rewards: list[list[float]] = []  # the rewards of each group's answers

    def begin_group(self, row: Row) -> None:
        """Start a group by its first answer, which must also be passed to `add`."""
        labels = {name: cut(row[name], CELL) for name in LABELS if row.get(name) is not None}
        named = {"id": cut(row.get("group_id"), TEXT), "question": cut(row.get("question"), TEXT)}
        self.groups.append({**named, "gold": cut(row.get("gold"), TEXT), **labels, "n": 0, "n_right": 0})
        self._rewards.append([])

    def add(self, row: Row) -> None:
        """Add an answer to the group."""
        group = self.groups[-1]
        cells = list_cells(row)
        if (reward := cells.get("reward")) is not None:
            self._rewards[-1].append(reward)
        for name, value in {"group": len(self.groups) - 1, "answer": group["n"], **cells}.items():
            if name not in self.columns and len(self.columns) >= MAX_COLUMNS:
                continue
            column = self.columns.setdefault(name, [])
            column.extend([None] * (self._count - len(column)))  # for earlier answers without this cell
            column.append(value)
        self._count += 1
        group["n"] += 1
        group["n_right"] += cells.get("correct") is True

    def place(self, group: int, offset: int, length: int, skip: int, size: int) -> None:
        """Set where a group is in the file, see `StepIndex`."""
        self.groups[group] |= {"offset": offset, "length": length, "skip": skip, "size": size}

    def encode_groups(self, groups: Iterable[Sequence[Row]]) -> Iterator[bytes]:
        """Yield the frame of each group; write them in this order from the beginning of a file."""
        offset = 0
        for rows in groups:
            self.begin_group(rows[0])
            for row in rows:
                self.add(row)
            content = encode_lines("".join(map(encode_line, rows)))
            frame = compress_frame(content)
            self.place(len(self.groups) - 1, offset, len(frame), 0, len(content))
            offset += len(frame)
            yield frame

    def build(self, size: int) -> StepIndex:
        """Return the index of a file of `size` bytes."""
        for column in self.columns.values():
            column.extend([None] * (self._count - len(column)))
        for group, rewards in zip(self.groups, self._rewards, strict=True):
            known = (math.fsum(rewards) / len(rewards), min(rewards), max(rewards)) if rewards else (None,) * 3
            group |= dict(zip(REWARDS, known, strict=True))
        _count_graded(self.groups, self.columns)
        return StepIndex(size, self.groups, self.columns)


def name_index(data: Path) -> Path:
    """Return the path of the index of a file of answers, `.jsonl` or `.jsonl.zst`."""
    return data.with_name(f"{data.name.removesuffix(SUFFIX).removesuffix('.jsonl')}.index.zst")


def encode_index(index: StepIndex) -> bytes:
    """Encode an index: a frame with the groups and one with the table, so that the groups can be read alone."""
    head = {"schema": SCHEMA, "bytes": index.bytes, "groups": index.groups}
    return b"".join(compress_rows([part]) for part in (head, {"rows": index.columns}))


def write_index(path: Path, index: StepIndex) -> None:
    """Write an index atomically.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_bytes(encode_index(index))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_index(path: Path, data: Path | None = None) -> StepIndex | None:
    """Read an index; None if it is missing, damaged, or belongs to a file of another size.

    Args:
        path: the path of the index.
        data: the file of answers; by default the one next to the index, if it exists.
    """
    head, table = _read_parts(path, 2)
    groups = _read_groups(head, path, data)
    columns = table.get("rows")
    if groups is None or not isinstance(columns, dict):
        return None
    count = sum(group["n"] for group in groups)
    if not all(isinstance(column, list) and len(column) == count for column in columns.values()):
        return None
    if not all("n_graded" in group for group in groups):  # written by an earlier version
        _count_graded(groups, columns)
    return StepIndex(head["bytes"], groups, columns)


def _count_graded(groups: Iterable[Row], columns: Mapping[str, Sequence[Any]]) -> None:
    """Set `n_graded` and `n_graded_right` of each group, see `StepIndex`."""
    begin = 0
    for group in groups:
        rows = slice(begin, begin + group["n"])
        failed = [tier in UNGRADED for tier in columns.get("tier", ())[rows]] or [False] * group["n"]
        right = [value is True for value in columns.get("correct", ())[rows]]
        group["n_graded"] = group["n"] - sum(failed)
        group["n_graded_right"] = sum(one and not lost for one, lost in zip(right, failed, strict=False))
        begin = rows.stop


def read_index_groups(path: Path, data: Path | None = None) -> list[Row] | None:
    """Read only the groups of an index, which is much faster; see `read_index`."""
    return _read_groups(_read_parts(path, 1)[0], path, data)


def read_listed_groups(path: Path) -> list[Row]:
    """Read the groups that an index lists, whatever the present size of its file of answers; none if damaged."""
    groups = _read_parts(path, 1)[0].get("groups")
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def _read_parts(path: Path, count: int) -> list[Row]:
    """Read the first `count` parts of an index; a missing or damaged part is empty."""
    try:
        parts = [parse_row(line) for line in islice(iterate_lines(path), count)]
    except (OSError, ValueError, DataError):
        parts = []
    return parts + [{}] * (count - len(parts))


def _read_groups(head: Row, path: Path, data: Path | None) -> list[Row] | None:
    """Return the groups of an index; None if it is incomplete, or does not match the size of the file of answers."""
    answers = data or path.with_name(path.name.removesuffix(".index.zst") + ANSWERS)
    groups, size = head.get("groups"), head.get("bytes", -1)
    if head.get("schema") != SCHEMA or not isinstance(groups, list) or not _is_count(size):
        return None
    if (data is not None or answers.exists()) and _find_size(answers) != size:
        return None
    return groups if all(_is_placed(group, size) for group in groups) else None


def _is_placed(group: Any, size: int) -> bool:
    """Return whether a group of an index lies within a file of `size` bytes."""
    known = isinstance(group, dict) and all(_is_count(group.get(name)) for name in PLACES)
    return known and bool(group["offset"] + group["length"] <= size)


def build_index(data: Path) -> StepIndex:
    """Build the index of any file of answers by reading it completely, with one answer in memory at a time.

    A group consists of consecutive answers to one problem with the same decoding, and ends at the latest with its
    frame. An incomplete last line is skipped.

    Raises:
        DataError: the file is damaged.
        OSError: the file cannot be opened.
    """
    builder = IndexBuilder()
    spans: list[tuple[int, int]] = []  # where the groups are in the content
    key: object = None
    with data.open("rb") as file:
        reader = FrameReader(file, data.suffix == SUFFIX)
        for begin, end, row in _read_rows(reader, data):
            own = row.get("decoding"), row.get("group_id")
            if own != key or reader.begins_frame(begin):
                builder.begin_group(row)
                spans.append((begin, end))
                key = own
            builder.add(row)
            spans[-1] = spans[-1][0], end
    for number, (begin, end) in enumerate(spans):
        builder.place(number, *_find_place(reader, begin, end))
    return builder.build(reader.size)


def _read_rows(reader: FrameReader, data: Path) -> Iterator[tuple[int, int, Row]]:
    """Yield where each row begins and ends in the content of a file, and the row."""
    position = count = 0
    try:
        for line in split_lines(reader):
            count += 1
            if count > MAX_LINES:
                raise ValueError(f"it has more than {MAX_LINES:,} lines")
            end = position + len(line) + 1
            if row := parse_row(line):
                yield position, end, row
            position = end
    except (ValueError, zstandard.ZstdError) as error:
        raise explain_damage(data, error, count) from error


def _find_place(reader: FrameReader, begin: int, end: int) -> tuple[int, int, int, int]:
    """Return a group's place in a file, given its place in the content; see `StepIndex`."""
    if not reader.compressed:
        return begin, end - begin, 0, end - begin
    first = reader.find_frame(begin)
    offset = reader.offsets[first]
    return offset, reader.find_end(reader.find_frame(end - 1)) - offset, begin - reader.begins[first], end - begin


def read_group(data: Path, index: StepIndex, group: int, texts_only: bool = False) -> list[Row]:
    """Read the answers of a group; with `texts_only`, skip their tokens and later fields, which is much faster.

    Raises:
        DataError: the file is damaged, or does not match the index.
        OSError: the file cannot be opened.
    """
    place = index.groups[group]
    skip, size = place["skip"], place["size"]
    if size > MAX_GROUP or skip > MAX_SKIP:
        raise DataError(
            f"{data}: group {group} takes {size >> 20} MiB after {skip >> 20} MiB; at most {MAX_GROUP >> 20} MiB after "
            f"{MAX_SKIP >> 20} MiB can be read."
        )
    try:
        with data.open("rb") as file:
            content = read_span(file, place["offset"], skip, size, data.suffix == SUFFIX)
        lines = map(_cut_tokens, content.split(b"\n")) if texts_only else content.split(b"\n")
        rows = [row for line in lines if (row := parse_row(line))]
    except (ValueError, zstandard.ZstdError) as error:
        raise explain_damage(data, error) from error
    if len(rows) != place["n"]:
        raise DataError(f"{data}: group {group} has {len(rows)} answers, but its index says {place['n']}.")
    return rows


def _cut_tokens(line: bytes) -> bytes:
    """Cut a row before its tokens. Inside a JSON string, the quotes of the key would be escaped."""
    begin = line.find(TOKENS)
    return line if begin < 0 else line[:begin] + b"}"


def _find_size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
