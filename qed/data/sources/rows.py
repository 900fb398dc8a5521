"""Rows of data with the place where each stands, so that a complaint about one names its file and number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A row's file or dataset, and its number counted from 1 (in jsonl, the line)."""

    source: str
    number: int

    def __str__(self) -> str:
        """As it stands in an error: `train.jsonl, row 7`."""
        return f"{self.source}, row {self.number}"


Rows = Iterator[tuple[Place, Row]]
