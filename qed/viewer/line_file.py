"""Read parts of a JSON lines file that may be long, still growing, torn at its end, or damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

Row = dict[str, Any]
BLOCK = 16_384  # bytes that are read to find a line
LONGEST_LINE = 1_000_000  # bytes; a longer line is skipped
WHOLE = 1_000_000  # bytes of a file that is read as a whole, because that is faster
SPARE = 4  # lines of a long file that are read for each row of a kind that is wanted


def parse_line(line: bytes) -> Row | None:
    """Return the row of a line; None if it is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def read_first_rows(path: Path, most: int = BLOCK) -> list[Row]:
    """Return the rows in the first bytes of a file."""
    with path.open("rb") as file:
        content = file.read(most)
    return [row for line in content.split(b"\n")[:-1] if (row := parse_line(line)) is not None]


def read_last_rows(path: Path, most: int = 262_144) -> list[Row]:
    """Return the rows in the last bytes of a file; an incomplete last line waits."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size - most)
        file.seek(start)
        lines = file.read(most).split(b"\n")[:-1]
    return [row for line in lines[1 if start else 0 :] if (row := parse_line(line)) is not None]


def sample_rows(path: Path, count: int, names: Sequence[str] = ()) -> list[Row]:
    """Return at most `count` rows that are spread evenly over a file, in its order; of a long file, over its bytes.

    Args:
        path: the file.
        count: of rows.
        names: of columns, of which the first that two rows have is wanted: then all rows have it. Without names, or
            where no column is there twice, any rows.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            lines = file.read(WHOLE).split(b"\n")[:-1]
        else:
            lines = list(_spread_blocks(file, size, (SPARE if names else 1) * count))
    return [row for line in _spread_lines(_select_lines(lines, names), count) if (row := parse_line(line)) is not None]


def _select_lines(lines: list[bytes], names: Sequence[str]) -> list[bytes]:
    """Return the lines that have the first of some columns that two lines have; all lines where there is none."""
    for name in names:
        having = [line for line in lines if f'"{name}":'.encode() in line]
        if len(having) > 1:
            return having
    return lines


def _spread_lines(lines: list[bytes], count: int) -> list[bytes]:
    """Return the first line, the last one, and others between them at equal distances."""
    chosen = min(count, len(lines))
    return [lines[number * (len(lines) - 1) // max(1, chosen - 1)] for number in range(chosen)]


def _spread_blocks(file: BinaryIO, size: int, count: int) -> Iterator[bytes]:
    """Yield the first complete line after each of `count` places."""
    last = -1
    for number in range(count):
        file.seek(max(size * number // count - 1, 0))
        begin = 0 if number == 0 else len(file.readline(LONGEST_LINE))
        start = 0 if number == 0 else size * number // count - 1 + begin
        line = file.readline(LONGEST_LINE)
        if start > last and line.endswith(b"\n"):
            last = start
            yield line
