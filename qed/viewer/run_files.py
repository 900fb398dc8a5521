"""Read the small files of a run folder in any state: growing, incomplete, damaged, too large, or missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from qed.runs.run import Row
from qed.viewer.library import RunPlace
from qed.viewer.params import Refused

MAX_LINE = 4 << 20  # bytes of a line; runs write no longer rows
MAX_FILE = 64 << 20  # bytes of a JSON file that is read as one value
MAX_TEXT = 1 << 20
GONE = 410  # the status of a run whose folder is deleted
Stamp = tuple[int, int]


def read_stamp(path: Path) -> Stamp | None:
    """Return the time and the size of a regular file, which change when it is written; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if path.is_file() else None


def find_file(place: RunPlace, *parts: str) -> tuple[Path, Stamp] | None:
    """Return a regular file of a run and its stamp; None if there is none, or it is a link that leads out of the run.

    Raises:
        Refused: the run is gone.
    """
    try:
        path = place.locate(*parts)
    except Refused as refusal:
        if refusal.status == GONE:
            raise
        return None
    stamp = read_stamp(path)
    return None if stamp is None else (path, stamp)


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
    found = find_file(place, *parts)
    if found is None or found[1][1] > MAX_FILE:
        return {}
    try:
        value = json.loads(found[0].read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_text(place: RunPlace, *parts: str) -> str:
    """Read the first MAX_TEXT bytes of a text file of a run; empty if there is none."""
    found = find_file(place, *parts)
    if found is None:
        return ""
    try:
        with found[0].open("rb") as file:
            return file.read(MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
