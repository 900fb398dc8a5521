"""The metrics of a run by column, for its curves."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qed.report.numbers import read_number
from qed.report.record import Phase, is_evaluation_row, split_phases
from qed.runs.metric_names import rename_old_metrics
from qed.runs.run import Row
from qed.viewer.evaluations import list_accuracies
from qed.viewer.library import Library, RunPlace
from qed.viewer.line_file import parse_line
from qed.viewer.memo import FileMemo
from qed.viewer.params import Params
from qed.viewer.run_files import find_file, iterate_whole_lines

MAX_ROWS = 20_000
MAX_NAMES = 1_000  # a run has about a hundred metrics
NAMES = ("step", "phase")  # columns that are not metrics
EVALUATED = (b'"eval/', b'"time/evaluat')  # in the lines of evaluations, by this version and earlier ones
ACCURACY = re.compile(r"(eval/.+/[^/]+)/avg@\d+")
CURVES = FileMemo(16)
Accuracy = tuple[int, float, float | None, float | None, int | None]


@dataclass
class Curves:
    """The rows of training steps by column; NaN stands for a metric that a row lacks.

    If there are more than MAX_ROWS rows, only every `stride`-th is kept, including the first and the last.
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    phases: array[int] = field(default_factory=lambda: array("i"))
    names: dict[str, int] = field(default_factory=dict)  # the number of each phase
    values: dict[str, array[float]] = field(default_factory=dict)
    evaluations: dict[str, list[Accuracy]] = field(default_factory=dict)
    evaluating: float = 0.0  # seconds that all evaluations took
    damaged: int = 0
    stride: int = 1

    def add(self, row: Row) -> None:
        """Add the row of a training step."""
        for name, value in row.items():
            if name not in NAMES and (number := read_number(value)) is not None:
                if name not in self.values and len(self.values) >= MAX_NAMES:
                    continue
                column = self.values.setdefault(name, array("d"))
                column.extend([math.nan] * (len(self.steps) - len(column)))
                column.append(number)
        self.steps.append(row["step"])
        self.phases.append(self.names.setdefault(str(row.get("phase", "")), len(self.names)))

    def halve(self) -> None:
        """Drop every other row."""
        self.stride *= 2
        for column in self.values.values():
            column.extend([math.nan] * (len(self.steps) - len(column)))
        self.steps, self.phases = self.steps[::2], self.phases[::2]
        self.values = {name: column[::2] for name, column in self.values.items()}

    def note_evaluation(self, row: Row) -> None:
        """Add the accuracies and the time of an evaluation's row."""
        self.evaluating += read_number(row.get("time/evaluate")) or 0.0
        for name, value in row.items():
            match, number = ACCURACY.fullmatch(name), read_number(value)
            if match and number is not None:
                low, high = (read_number(row.get(f"{match[1]}/{bound}")) for bound in ("ci_lo", "ci_hi"))
                self.evaluations.setdefault(match[1], []).append((row["step"], number, low, high, None))

    def split_phases(self, settings: Row, events: list[Row]) -> list[Phase]:
        """Return the phases with the steps of their rows."""
        names = list(self.names)
        rows = [{"step": step, "phase": names[number]} for step, number in zip(self.steps, self.phases, strict=True)]
        return split_phases(rows, settings, events)


def load_curves(place: RunPlace) -> Curves:
    """Return the metrics in a run's file at this moment; empty if there is no file."""
    path = find_file(place, "metrics.jsonl")
    return Curves() if path is None else CURVES.read(path, [path], lambda: _read_curves(path))


def _read_curves(path: Path) -> Curves:
    """Read the metrics line by line."""
    curves, last = Curves(), b""
    number = 0
    for line in _iterate_lines(path):
        if any(name in line for name in EVALUATED):
            _add_line(curves, line)
            continue
        if number % curves.stride == 0:
            last = b""
            _add_line(curves, line)
            if len(curves.steps) > MAX_ROWS:
                curves.halve()
        else:
            last = line
        number += 1
    if last:
        _add_line(curves, last)
    return curves


def _iterate_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, up to a disk error if there is one."""
    try:
        yield from iterate_whole_lines(path)
    except OSError:
        return


def _add_line(curves: Curves, line: bytes) -> None:
    """Add a line, or count it if it is damaged."""
    row = parse_line(line)
    step = row.get("step") if row else None
    if row is None or isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 1 << 53:
        curves.damaged += 1
        return
    row = rename_old_metrics(row)
    if is_evaluation_row(row):
        curves.note_evaluation(row)
    else:
        curves.add(row)


def read_curves(library: Library, params: Params) -> dict[str, Any]:
    """Return the metrics of a run by column: rows of training steps, and the accuracies of its evaluations.

    Args:
        library: the runs.
        params: `run`.
    """
    place = library.find(params.text("run"))
    curves = load_curves(place)
    count = len(curves.steps)
    return {
        "steps": list(curves.steps),
        "phase": list(curves.phases),
        "phases": list(curves.names),
        "values": {name: _fill(column, count) for name, column in sorted(curves.values.items())},
        "evaluations": _merge_accuracies(curves, place),
        "evaluating": curves.evaluating,
        "damaged": curves.damaged,
        "stride": curves.stride,
    }


def _fill(column: array[float], count: int) -> list[float | None]:
    """Return a column as long as the others, with null for missing values."""
    missing = [None] * (count - len(column))
    return [None if math.isnan(value) else value for value in column] + missing


def _merge_accuracies(curves: Curves, place: RunPlace) -> dict[str, list[list[float | None]]]:
    """Return the accuracies by series and step, from the summaries, or from the metrics if a summary is missing."""
    series: dict[str, dict[int, list[float | None]]] = {}
    for name, points in curves.evaluations.items():
        series[name] = {step: [step, *rest] for step, *rest in points}
    for found in list_accuracies(place):
        name = f"eval/{found['task']}/{found['decoding']}"
        values = [found[key] for key in ("step", "accuracy", "ci_lo", "ci_hi", "n")]
        series.setdefault(name, {})[found["step"]] = values
    return {name: [points[step] for step in sorted(points)] for name, points in sorted(series.items())}
