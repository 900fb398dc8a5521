"""Rows of data with their places, so that error messages can name the file and the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]


class Place(NamedTuple):
    """A row's file or dataset, and its number from 1 (the line number in jsonl); 0 means the whole file."""

    source: str
    number: int

    def __str__(self) -> str:
        """Return the place for an error message: `train.jsonl, row 7`."""
        return f"{self.source}, row {self.number}" if self.number else self.source


Rows = Iterator[tuple[Place, Row]]


def describe_duplicates(names: Sequence[str]) -> str:
    """Return a message if two columns of a table have the same name; else an empty string."""
    duplicates = sorted(name for name, times in Counter(names).items() if name and times > 1)
    if not duplicates:
        return ""
    return f"two columns have the name {duplicates[0]}, so one would hide the other. Rename one."


def decode_texts(value: Any) -> Any:
    """Return a value of a table, or a row, with UTF-8 bytes decoded to text.

    Some programs write text to parquet without marking it as text. Other bytes, such as an image's, are kept.
    """
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {key: decode_texts(inner) for key, inner in value.items()}
    # All values of a list in a table have the same type, and a list of tokens is long.
    if isinstance(value, list) and isinstance(
        next((each for each in value if each is not None), None), bytes | dict | list
    ):
        return [decode_texts(inner) for inner in value]
    return value


def has_bytes(value: Any) -> bool:
    """Return whether a value of a row contains bytes; it may be nested more deeply than Python's recursion limit."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, bytes):
            return True
        pending += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
    return False
