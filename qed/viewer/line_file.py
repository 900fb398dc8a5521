"""Read parts of a JSON lines file that may be long, still growing, incomplete at its end, or damaged."""

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
END = 65_536  # bytes at the end of a long file, which are also read


def parse_line(line: bytes) -> Row | None:
    """Return the row of a line; None if the line is not one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def read_first_rows(path: Path) -> list[Row]:
    """Return the rows in the first bytes of a file."""
    with path.open("rb") as file:
        content = file.read(BLOCK)
    return [row for line in content.split(b"\n")[:-1] if (row := parse_line(line)) is not None]


def read_last_rows(path: Path, most: int = 262_144) -> list[Row]:
    """Return the rows in the last bytes of a file, without an incomplete last line."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size - most)
        file.seek(start)
        lines = file.read(most).split(b"\n")[:-1]
    return [row for line in lines[1 if start else 0 :] if (row := parse_line(line)) is not None]


def sample_lines(path: Path, count: int) -> tuple[list[bytes], list[bytes]]:
    """Return the lines of a file, or `count` lines spread over a long one, and the lines at its end.

    Without the end, a sample could miss a short last phase.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            return file.read(WHOLE).split(b"\n")[:-1], []
        return list(_spread_blocks(file, size, count)), _read_end(file, size)


def draw_rows(samples: Sequence[list[bytes]], count: int, names: Sequence[str]) -> list[Row]:
    """Return the rows of at most `count` evenly spaced lines, including the first and the last.

    Args:
        samples: lists of lines of a file; the first in which two lines have the same one of `names` is used.
        count: the most rows.
        names: columns; the first that two lines of a sample have selects its lines.
    """
    marks = [f'"{name}":'.encode() for name in names]
    kinds = ([line for line in lines if mark in line] for mark in marks for lines in samples)
    wanted = next((lines for lines in kinds if len(lines) > 1), [])
    chosen = min(count, len(wanted))
    drawn = (wanted[number * (len(wanted) - 1) // max(1, chosen - 1)] for number in range(chosen))
    return [row for line in drawn if (row := parse_line(line)) is not None]


def _read_end(file: BinaryIO, size: int) -> list[bytes]:
    """Return the complete lines in the last bytes of a file, each with its line end."""
    file.seek(size - END)
    return [line for line in file.read(END).splitlines(keepends=True)[1:] if line.endswith(b"\n")]


def _spread_blocks(file: BinaryIO, size: int, count: int) -> Iterator[bytes]:
    """Yield the first complete line after each of `count` positions."""
    last = -1
    for number in range(count):
        file.seek(max(size * number // count - 1, 0))
        begin = 0 if number == 0 else len(file.readline(LONGEST_LINE))
        start = 0 if number == 0 else size * number // count - 1 + begin
        line = file.readline(LONGEST_LINE)
        if start > last and line.endswith(b"\n"):
            last = start
            yield line
