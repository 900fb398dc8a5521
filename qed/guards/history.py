"""The metrics of a phase as alarms look back on them: the first steps, the last ones, and the evaluations."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

Row = Mapping[str, object]

# Steps whose mean is compared: accuracy differs by .1 between single steps of 128 answers, and by .03 between means.
WINDOW = 10
# Windows that overlap would be compared with themselves.
ENOUGH = 2 * WINDOW
KEPT = 30  # rows that can be looked back on; the first ones are kept besides
HELD_OUT = re.compile(r"eval/.+/greedy/avg@\d+")


@dataclass
class History:
    """The metrics of a phase: the first steps, the last ones, how many there were, and its evaluations."""

    first: list[Row] = field(default_factory=list)
    last: deque[Row] = field(default_factory=lambda: deque(maxlen=KEPT))
    steps: int = 0
    held_out: list[float] = field(default_factory=list)  # greedy accuracy, the mean over tasks, by evaluation

    def add(self, row: Row) -> None:
        """Take a row of metrics.jsonl in."""
        measured = [value for key, value in row.items() if HELD_OUT.fullmatch(key) and isinstance(value, float | int)]
        if measured:
            self.held_out.append(fmean(measured))
        if "train/rows" in row:
            self.steps += 1
            self.last.append(row)
            if len(self.first) < WINDOW:
                self.first.append(row)

    def recent(self, key: str, steps: int) -> list[float]:
        """A measure in the last steps, oldest first; empty where one of them lacks it."""
        return _column(list(self.last)[-steps:], key) if self.steps >= steps else []

    def means(self, key: str) -> tuple[float, float] | None:
        """The mean of a measure over the first and over the last steps; None while they are too few."""
        now = self.recent(key, WINDOW)
        begun = _column(self.first, key)
        return (fmean(begun), fmean(now)) if self.steps >= ENOUGH and now and begun else None

    def shares_of_answers(self, *counts: str) -> tuple[float, float]:
        """The share of answers that these counts add up to, in the last step and in the last WINDOW steps.

        A share is 0 where a step lacks a count, the second also while there are fewer steps.
        """
        keys = (*counts, "length/total", "length/mean")
        columns = [self.recent(key, min(self.steps, WINDOW)) for key in keys]
        if not all(columns):
            return 0.0, 0.0
        *found, totals, means = columns
        answers = [round(total / mean) if mean else 0 for total, mean in zip(totals, means, strict=True)]
        sums = [sum(column) for column in zip(*found, strict=True)]
        lately = sum(sums) / max(1, sum(answers)) if len(sums) == WINDOW else 0.0
        return sums[-1] / max(1, answers[-1]), lately


def _column(rows: Sequence[Row], key: str) -> list[float]:
    found = [value for row in rows if isinstance(value := row.get(key), float | int)]
    return [float(value) for value in found] if len(found) == len(rows) else []
