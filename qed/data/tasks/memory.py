"""Rows given in Python, as `qed.train(tasks=rows)` does: `memory:NAME`, recognised by their columns like a file's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from qed.data.sources import memory
from qed.data.tasks import base
from qed.errors import UsageError
from qed.types import Problem

PROMPT = "r1_zero"


def load(split: str) -> list[Problem]:
    """Load the problems of the rows that are provided under this name."""
    return read(split)


def read(
    split: str,
    path: str = "",
    mapping: Mapping[str, str] | None = None,
    left_out: Counter[str] | None = None,
    revision: str = "",
    originals: base.Originals | None = None,
) -> list[Problem]:
    """Load the problems of the rows that are provided under this name, one per row.

    Raises:
        UsageError: there are no such rows.
        DataError: a row (named by its number) is broken, or there is no question or answer column.
    """
    if path:
        raise UsageError(f"The task 'memory' is data passed in Python and reads no file; name {path} itself.")
    return base.build_problems(memory.read_given(split), split, mapping, left_out, originals=originals)
