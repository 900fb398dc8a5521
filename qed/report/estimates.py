"""Intervals of the means that a summary gives as bare numbers, from the answers themselves.

Answers to one problem are not independent, so problems are resampled, as for accuracy (`qed.evaluation.resampling`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from qed.evaluation.intervals import compute_wilson_interval
from qed.evaluation.resampling import bootstrap_intervals, resample_means
from qed.evaluation.summary import group_by_problem
from qed.report.numbers import read_number
from qed.runs.run import Row

CLASSES = {
    "fmt1_ans1": "format kept, right",
    "fmt1_ans0": "format kept, wrong",
    "fmt0_ans1": "format broken, right",
    "fmt0_ans0": "format broken, wrong",
}
Values = Sequence[Sequence[float]]  # of the answers to each problem
Measure = Callable[[Row], float | None]  # None where it does not apply to an answer


@dataclass(frozen=True)
class Bounds:
    """A 95 % interval, None where nothing spreads; and of how many answers, where these are not all."""

    ends: tuple[float, float] | None
    some: int | None = None


def _is(name: str) -> Measure:
    return lambda row: float(row["class"] == name) if row.get("class") else None


SHARES: dict[str, Measure] = {
    **{name: _is(name) for name in CLASSES},
    "format": lambda row: float(bool(row.get("format_ok"))),
    "truncated_frac": lambda row: float(row.get("stop_reason") == "length"),
    "no_answer_frac": lambda row: float(row.get("extracted") is None),
    "reasoning_frac": lambda row: float(bool(row.get("reasoning_chars"))),
}
MEANS: dict[str, Measure] = {
    "reward": lambda row: read_number(row.get("reward")),
    "mean_tokens": lambda row: read_number(row.get("n_tokens")) or None,
    "right_tokens": lambda row: read_number(row.get("n_tokens")) or None if row["correct"] else None,
    "wrong_tokens": lambda row: None if row["correct"] else read_number(row.get("n_tokens")) or None,
    "reasoning_chars": lambda row: read_number(row.get("reasoning_chars")) or None,
}


def compute_bounds(rows: Sequence[Row]) -> dict[str, Bounds]:
    """The interval of each share and mean over the answers of one decoding; none where no answers were kept."""
    if not rows:
        return {}
    groups = list(group_by_problem(rows).values())
    parts = {name for row in rows for name in row.get("parts") or {}}
    found: dict[str, Bounds] = {}
    whole: dict[str, list[float]] = {}
    some: dict[str, Values] = {}
    for name, measure in (SHARES | MEANS | {f"reward/{name}": _read_part(name) for name in sorted(parts)}).items():
        values = [[value for row in group if (value := measure(dict(row))) is not None] for group in groups]
        count = sum(map(len, values))
        partial = None if count == len(rows) else count
        if count and (name in SHARES or _halves(values)) and all(len(own) <= 1 for own in values):
            found[name] = Bounds(compute_wilson_interval(round(sum(map(sum, values))), count), partial)
        elif count == len(rows) and (name in SHARES or _compute_halves(values)):
            whole[name] = [fmean(own) for own in values]
        elif _compute_halves(values):
            some[name] = values
        elif count:
            found[name] = Bounds(None, partial)
    return found | _means(whole) | _ratios(some, len(rows))


def _read_part(name: str) -> Measure:
    return lambda row: read_number((row.get("parts") or {}).get(name))


def _compute_halves(values: Values) -> bool:
    """Whether there is a spread to resample; equal lengths say nothing of how others would differ."""
    return sum(map(bool, values)) > 1 and len({value for own in values for value in own}) > 1


def _halves(values: Values) -> bool:
    """Whether a mean is that of noughts and ones, both of them seen, and thus a share."""
    return {value for own in values for value in own} == {0.0, 1.0}


def _means(whole: Mapping[str, Sequence[float]]) -> dict[str, Bounds]:
    """The intervals of means over problems, from one set of draws: drawing anew for each would take most of the time
    of a report."""
    if not whole:
        return {}
    bounds = bootstrap_intervals(np.array(list(whole.values()), dtype=np.float64).T)
    return {name: Bounds(ends) for name, ends in zip(whole, bounds, strict=True)}


def _ratios(some: Mapping[str, Values], answers: int) -> dict[str, Bounds]:
    """The intervals of means over those answers to which a measure applies: how many there are is resampled with them.

    Percentiles, because a ratio has no correction for skewness that is as simple.
    """
    if not some:
        return {}
    columns = [[each(own) for own in values] for values in some.values() for each in (sum, len)]
    means = resample_means(np.array(columns, dtype=np.float64).T)
    found: dict[str, Bounds] = {}
    for place, (name, values) in enumerate(some.items()):
        totals, counts = means[:, 2 * place], means[:, 2 * place + 1]
        low, high = np.quantile(totals[counts > 0] / counts[counts > 0], (0.025, 0.975))
        count = sum(map(len, values))
        found[name] = Bounds((float(low), float(high)), None if count == answers else count)
    return found
