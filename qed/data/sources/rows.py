"""Define rows of data with their place, so that an error message can name file and row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Row = dict[str, Any]


class Place(NamedTuple):
    """A row's file or dataset, and its number from 1 (in jsonl, the line)."""

    source: str
    number: int

    def __str__(self) -> str:
        """Return the place for an error message: `train.jsonl, row 7`."""
        return f"{self.source}, row {self.number}"


Rows = Iterator[tuple[Place, Row]]
