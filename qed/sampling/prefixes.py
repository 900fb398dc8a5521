"""A table of token sequences with values, searched by longest shared prefix."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class PrefixTable(Generic[T]):
    """Token sequences in sorted order, each with a value.

    A sequence in the table that is a prefix of another sorts before it, and everything between them has that prefix
    too. So the entry directly before a sequence shares as many tokens as any entry that the sequence continues.
    """

    order: list[tuple[int, ...]] = field(default_factory=list)
    values: list[T] = field(default_factory=list)

    def has(self, tokens: tuple[int, ...]) -> bool:
        """Return whether a sequence is in the table."""
        place = bisect_left(self.order, tokens)
        return self.order[place : place + 1] == [tokens]

    def add(self, tokens: tuple[int, ...], value: T) -> None:
        """Add a sequence that is not yet in the table."""
        place = bisect_left(self.order, tokens)
        self.order.insert(place, tokens)
        self.values.insert(place, value)

    def locate(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return the index of the entry directly before, and its number of shared leading tokens; (0, 0) for none."""
        wanted = tuple(tokens)
        place = bisect_right(self.order, wanted) - 1
        if place < 0:
            return 0, 0
        pairs = zip(wanted, self.order[place], strict=False)
        least = min(len(wanted), len(self.order[place]))
        return place, next((number for number, (one, other) in enumerate(pairs) if one != other), least)
