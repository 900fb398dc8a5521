"""Read JSON: lines of objects, a list of objects, or an object with such a list, possibly one per split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qed.data.sources.rows import Place, Row
from qed.errors import DataError

SPLIT = {"columns", "index", "data"}  # what pandas writes with orient="split"
PANDAS = (
    "{place}: this looks like a table that pandas wrote with columns and an index in place of rows. Write rows: "
    'table.to_json("data.jsonl", orient="records", lines=True).'
)
VIEWER = (
    "{place}: this is a page of the hub's viewer, which has 100 rows at most and may cut long texts. Download the "
    "dataset's parquet files instead, or name it: --tasks hub:OWNER/NAME."
)


def parse_lines(file: Path, text: str, first: int = 1) -> Iterator[tuple[int, Row]]:
    """Yield the objects of JSON Lines with their line numbers, counted from `first`.

    Raises:
        DataError: a line is not an object; the message names it.
    """
    start, number, name = 0, first, str(file)
    while start < len(text):  # one line at a time, because a list of all lines would be a second copy of the file
        end = text.find("\n", start) % (len(text) + 1)  # -1 becomes the end of the text
        line = text[start:end]
        if line.strip():
            yield number, parse_line(Place(name, number), line)
        start, number = end + 1, number + 1


def parse_line(place: Place, line: str) -> Row:
    """Parse one line of JSON.

    Raises:
        DataError: the line is broken, or not an object.
    """
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: broken JSON ({error.msg} at column {error.colno}): {line[:80]}") from error
    except RecursionError as error:
        raise DataError(f"{place}: nested too deeply: {line[:80]}") from error
    except ValueError as error:
        raise DataError(f"{place}: a number with too many digits ({error}).") from error
    if not isinstance(row, dict):
        hint = " A list of all rows is a .json file." if isinstance(row, list) else ""
        raise DataError(f"{place}: expected an object with columns, found {type(row).__name__}.{hint}")
    if row and all(map(_is_indexed, row.values())):
        raise DataError(PANDAS.format(place=place))
    return row


def parse_json(file: Path, text: str, split: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a JSON file with their numbers from 1.

    The file has a list of objects, an object with such a list (`{"data": […]}`) or with one per split
    (`{"train": […], "test": […]}`), an object of columns (`{"question": […], "answer": […]}`), or JSON lines.

    Args:
        file: the file, for messages.
        text: its text.
        split: the split to read; an empty one reads all.

    Raises:
        DataError: the file is broken, has another structure, or lacks this split.
    """
    try:
        content = json.loads(text) if text.strip() else []
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            yield from parse_lines(file, text)
            return
        raise DataError(f"{file}, line {error.lineno}: broken JSON ({error.msg} at column {error.colno}).") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{file} is nested too deeply, or has a number with too many digits: {error}.") from error
    yield from enumerate(_list_rows(file, content, split), 1)


def has_part(text: str, split: str) -> bool:
    """Return whether a JSON file has a list of rows per split, with this split among several."""
    try:
        content = json.loads(text)
    except (RecursionError, ValueError):
        return False
    parts = _find_parts(content) if isinstance(content, dict) else {}
    return split in parts and len(parts) > 1


def _list_rows(file: Path, content: Any, split: str) -> list[Row]:
    if _is_table(content):
        return list(content)
    if not isinstance(content, dict):
        raise DataError(f"{file}: expected a list of objects, found {type(content).__name__}.")
    if hint := _recognize_other(content):
        raise DataError(hint.format(place=file))
    if split and _is_table(content.get(split)):
        return list(content[split])
    parts = _find_parts(content)
    return _select_part(file, parts, split) if parts else _zip_columns(file, content)


def _find_parts(content: dict[str, Any]) -> dict[str, list[Row]]:
    return {name: list(part) for name, part in content.items() if part and _is_table(part)}


def _select_part(file: Path, parts: dict[str, list[Row]], split: str) -> list[Row]:
    """Return the rows under `data`, or those of the only part, or without a split those of all parts."""
    if "data" in parts:
        return parts["data"]
    if split and len(parts) > 1:
        raise DataError(
            f"{file} has no split '{split}'. There are: {', '.join(parts)}. Name one as "
            f"files:{next(iter(parts))}@{file}."
        )
    return [row for part in parts.values() for row in part]


def _zip_columns(file: Path, content: dict[str, Any]) -> list[Row]:
    columns = [column for column in content.values() if isinstance(column, list)]
    if len(columns) == len(content) and len({len(column) for column in columns}) == 1:
        return [dict(zip(content, cells, strict=True)) for cells in zip(*columns, strict=True)]
    raise DataError(
        f"{file}: expected a list of objects, or an object with such a list under data or the names of splits; "
        f"found an object with {', '.join(map(str, list(content)[:8])) or 'nothing'}."
    )


def _recognize_other(content: dict[str, Any]) -> str:
    """Return advice for an object in which another program puts rows; empty if it is none of these."""
    if isinstance(rows := content.get("rows"), list) and rows and all(map(_is_viewed, rows)):
        return VIEWER
    tables = content and all(isinstance(column, dict) for column in content.values())
    # Other names on both levels are those of splits or ids, which are not an index.
    indexed = tables and (all(map(str.isdigit, content)) or all(map(_is_indexed, content.values())))
    return PANDAS if indexed or (set(content) == SPLIT and _has_cells(content["data"])) else ""


def _is_indexed(column: Any) -> bool:
    """Return whether a value is a table's column keyed by row numbers, as pandas writes it."""
    return isinstance(column, dict) and next(iter(column), "").isdigit()


def _has_cells(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, list) for row in rows)


def _is_viewed(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("row"), dict) and "row_idx" in row


def _is_table(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(row, dict) for row in content)
