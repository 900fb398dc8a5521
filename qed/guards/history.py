"""The history of a phase's metrics for alarms: its first steps, its last steps, and its evaluations."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

Row = Mapping[str, object]

# Steps per window; the means of windows are compared. Accuracy varies by .1 between steps of 128 answers, by .03
# between means.
WINDOW = 10
# The first and the last window must not overlap.
ENOUGH = 2 * WINDOW
RECENT_ROWS = 30  # stored in addition to the first ones
HELD_OUT = re.compile(r"eval/.+/greedy/avg@\d+")


@dataclass
class History:
    """The rows of a phase's first and last steps, the number of steps, and its evaluations."""

    first: list[Row] = field(default_factory=list)
    last: deque[Row] = field(default_factory=lambda: deque(maxlen=RECENT_ROWS))
    steps: int = 0
    evaluations: list[dict[str, float]] = field(default_factory=list)  # greedy accuracy by task

    def add(self, row: Row) -> None:
        """Add a row of metrics.jsonl."""
        found = {key: value for key, value in row.items() if HELD_OUT.fullmatch(key) and isinstance(value, float | int)}
        if found:
            self.evaluations.append(found)
        if "train/rows" in row:
            self.steps += 1
            self.last.append(row)
            if len(self.first) < WINDOW:
                self.first.append(row)

    def list_held_out(self) -> list[float]:
        """List each evaluation's mean greedy accuracy over the tasks that all evaluations have in common."""
        common = [key for key in (self.evaluations or [{}])[0] if all(key in own for own in self.evaluations)]
        return [fmean(own[key] for key in common) for own in self.evaluations] if common else []

    def recent(self, key: str, steps: int) -> list[float]:
        """Return a metric of the last steps, oldest first; empty if one of them lacks it or there are fewer steps."""
        return _read_column(list(self.last)[-steps:], key) if self.steps >= steps else []

    def means(self, key: str) -> tuple[float, float] | None:
        """Return the means of a metric over the first and the last WINDOW steps; None while these overlap."""
        now = self.recent(key, WINDOW)
        before = _read_column(self.first, key)
        return (fmean(before), fmean(now)) if self.steps >= ENOUGH and now and before else None

    def shares_of_answers(self, *counts: str) -> tuple[float, float]:
        """Return the share of answers in these counts, in the last step and over the last WINDOW steps.

        A share is 0 if a step lacks a count; the second is 0 while there are fewer than WINDOW steps.
        """
        keys = (*counts, "length/total", "length/mean")
        columns = [self.recent(key, min(self.steps, WINDOW)) for key in keys]
        if not all(columns):
            return 0.0, 0.0
        *count_columns, totals, means = columns
        answers = [round(total / mean) if mean else 0 for total, mean in zip(totals, means, strict=True)]
        sums = [sum(column) for column in zip(*count_columns, strict=True)]
        lately = sum(sums) / max(1, sum(answers)) if len(sums) == WINDOW else 0.0
        return sums[-1] / max(1, answers[-1]), lately


def _read_column(rows: Sequence[Row], key: str) -> list[float]:
    """Return a metric of all rows; empty if one of them lacks it."""
    values = [value for row in rows if isinstance(value := row.get(key), float | int)]
    return [float(value) for value in values] if len(values) == len(rows) else []
