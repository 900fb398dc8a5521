"""Compute intervals for the means of an evaluation summary from its stored answers.

Answers to one problem are not independent, so the bootstrap resamples problems, as for accuracy
(`qed.evaluation.resampling`).
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
ROUNDING = 1e-9  # difference of means that is none
Values = Sequence[Sequence[float]]  # one sequence for each problem, one value for each answer
Measure = Callable[[Row], float | None]  # None where the measure does not apply to the answer


@dataclass(frozen=True)
class Bounds:
    """95 % interval `ends`, None where all values are equal; `n_answers` is set where not all answers count."""

    ends: tuple[float, float] | None
    n_answers: int | None = None


def _match_class(name: str) -> Measure:
    return lambda row: float(row["class"] == name) if row.get("class") else None


SHARES: dict[str, Measure] = {
    **{name: _match_class(name) for name in CLASSES},
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
    """Compute the interval of each share and mean over the answers of one decoding; empty without stored answers."""
    if not rows:
        return {}
    groups = list(group_by_problem(rows).values())
    parts = {name for row in rows for name in row.get("parts") or {}}
    bounds: dict[str, Bounds] = {}
    means: dict[str, list[float]] = {}  # of each problem, for measures of all answers
    ratios: dict[str, Values] = {}  # for measures that apply to some answers only
    for name, measure in (SHARES | MEANS | {f"reward/{name}": _read_part(name) for name in sorted(parts)}).items():
        values = [[value for row in group if (value := measure(dict(row))) is not None] for group in groups]
        count = sum(map(len, values))
        partial = None if count == len(rows) else count
        if count and (name in SHARES or _is_share(values)) and all(len(own) <= 1 for own in values):
            bounds[name] = Bounds(compute_wilson_interval(round(sum(map(sum, values))), count), partial)
        elif count == len(rows) and (name in SHARES or _is_spread(values)):
            means[name] = [fmean(own) for own in values]
        elif _can_resample(values):
            ratios[name] = values
        elif count:
            bounds[name] = Bounds(None, partial)
    return bounds | _bound_means(means) | _bound_ratios(ratios, len(rows))


def _read_part(name: str) -> Measure:
    return lambda row: read_number((row.get("parts") or {}).get(name))


def _can_resample(values: Values) -> bool:
    """Return whether several problems have values and the values differ; equal values give no spread to resample."""
    return sum(map(bool, values)) > 1 and len({value for own in values for value in own}) > 1


def _is_spread(values: Values) -> bool:
    """Return whether the means of the problems differ. Lengths may differ within each problem alone."""
    return _can_resample(values) and np.ptp([fmean(own) for own in values]) > ROUNDING


def _is_share(values: Values) -> bool:
    """Return whether the values are zeros and ones, both present, so that their mean is a share."""
    return {value for own in values for value in own} == {0.0, 1.0}


def _bound_means(means: Mapping[str, Sequence[float]]) -> dict[str, Bounds]:
    """Compute the intervals of means over problems.

    All measures share one set of resamples: a new set for each would dominate the time of a report.
    """
    if not means:
        return {}
    intervals = bootstrap_intervals(np.array(list(means.values()), dtype=np.float64).T)
    return {name: Bounds(ends) for name, ends in zip(means, intervals, strict=True)}


def _bound_ratios(ratios: Mapping[str, Values], n_answers: int) -> dict[str, Bounds]:
    """Compute the intervals of means over the answers to which a measure applies.

    The number of these answers is resampled with their sum. The interval is a percentile interval, because a ratio has
    no equally simple correction for skewness.
    """
    if not ratios:
        return {}
    columns = [[compute(own) for own in values] for values in ratios.values() for compute in (sum, len)]
    means = resample_means(np.array(columns, dtype=np.float64).T)
    bounds: dict[str, Bounds] = {}
    for index, (name, values) in enumerate(ratios.items()):
        totals, counts = means[:, 2 * index], means[:, 2 * index + 1]
        low, high = np.quantile(totals[counts > 0] / counts[counts > 0], (0.025, 0.975))
        count = sum(map(len, values))
        bounds[name] = Bounds((float(low), float(high)), None if count == n_answers else count)
    return bounds
