"""Read the small files of a run folder in any state: growing, incomplete, damaged, too large, or missing."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from qed.runs.run import Row
from qed.viewer.library import RunPlace
from qed.viewer.params import Refused

MAX_LINE = 4 << 20  # bytes of a line; runs write no longer rows
MAX_FILE = 64 << 20  # bytes of a JSON file that is read as one value
MAX_TEXT = 1 << 20
GONE = 410  # the status of a run whose folder is deleted


def find_file(place: RunPlace, *parts: str) -> Path | None:
    """Return a regular file of a run; None if there is none, or it is a link that leads out of the run.

    Raises:
        Refused: the run is gone.
    """
    try:
        path = place.locate(*parts)
    except Refused as refusal:
        if refusal.status == GONE:
            raise
        return None
    return None if read_size(path) is None else path


def read_size(path: Path) -> int | None:
    """Return the size of a regular file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def list_folder(place: RunPlace, *parts: str) -> list[str]:
    """List the names in a folder of a run in order; none if there is no such folder, or it is a link that leads out."""
    try:
        return place.list_names(*parts)
    except Refused as refusal:
        if refusal.status == GONE:
            raise
        return []


def iterate_whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that end in a line feed, without an incomplete last line.

    Of a line with more than MAX_LINE bytes only the first part is yielded, which does not parse as a row.
    """
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE)
            if rest and line.strip():
                yield line


def read_object(place: RunPlace, *parts: str) -> Row:
    """Read a JSON file of a run; empty if it is missing, damaged, too large, or not an object."""
    content = _read_start(place, parts, MAX_FILE + 1)
    try:
        value = json.loads(content) if len(content) <= MAX_FILE else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_text(place: RunPlace, *parts: str) -> str:
    """Read the first MAX_TEXT bytes of a text file of a run; empty if there is none."""
    return _read_start(place, parts, MAX_TEXT).decode("utf-8", "replace")


def _read_start(place: RunPlace, parts: Sequence[str], most: int) -> bytes:
    """Return the first bytes of a file of a run; none if it is missing or cannot be read."""
    path = find_file(place, *parts)
    with suppress(OSError):
        if path is not None:
            with path.open("rb") as file:
                # Python allocates as much as it is asked to read.
                return file.read(min(most, os.fstat(file.fileno()).st_size + 1))
    return b""
