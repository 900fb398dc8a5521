"""The cells of an answer in the table of a step's index: its figures, short texts and measures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

CELL = 100  # the most characters of a text
TEXTS = ("tier", "stop_reason", "source", "extracted", "class")
NUMBERS = ("reward", "n_tokens", "version", "given")
TRUTHS = ("correct", "format_ok")
LARGEST = 1 << 63  # JSON may contain numbers that no float can represent


def list_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of an answer; a value of the wrong type becomes None."""
    cells: dict[str, Any] = {name: _read_number(row[name]) for name in NUMBERS if name in row}
    cells |= {name: row[name] if isinstance(row[name], bool) else None for name in TRUTHS if name in row}
    cells |= {name: cut(row[name], CELL) for name in TEXTS if name in row}
    if "advantage" in row:
        cells["advantage"] = _read_mean(row["advantage"])
    parts = row.get("parts")
    if isinstance(parts, Mapping):
        cells |= {f"parts/{cut(name, CELL)}": _read_number(value) for name, value in parts.items()}
    if "tokens" not in row:
        return cells
    # Imported here, because loading NumPy would double the start-up time of commands that measure no tokens.
    from qed.runs.answer_measures import measure_answer  # noqa: PLC0415

    return cells | measure_answer(row)


def cut(value: Any, length: int) -> str | int | float | None:
    """Return a text cut to `length` characters, a number unchanged, and None for anything else."""
    return value[:length] if isinstance(value, str) else _read_number(value)


def _read_number(value: Any) -> int | float | None:
    """Return a finite number, and None for anything else."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return value if known and abs(value) < LARGEST else None


def _read_mean(value: Any) -> int | float | None:
    """Return a number, or the mean of a list of numbers, such as per-token advantages."""
    if not isinstance(value, list | tuple):
        return _read_number(value)
    known = [number for each in value if (number := _read_number(each)) is not None]
    return math.fsum(known) / len(known) if known else None
