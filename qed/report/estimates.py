"""Compute intervals for the means of an evaluation summary from its stored answers.

Answers to one problem are not independent, so the variance is taken between problems, as for accuracy
(`qed.evaluation.intervals`). A mean over answers is a ratio of two sums over problems, that of the values and that of
the number of applicable answers, and its variance is that of the ratio (Cochran 1977, "Sampling Techniques", chapter
6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qed.evaluation.distributions import Floats, Z, compute_student_quantile
from qed.evaluation.intervals import compute_mean_intervals, compute_share_interval, compute_share_intervals
from qed.evaluation.summary import group_by_problem, is_wrong
from qed.report.numbers import read_number
from qed.runs.run import Row

CLASSES = {
    "fmt1_ans1": "format kept, right",
    "fmt1_ans0": "format kept, wrong",
    "fmt0_ans1": "format broken, right",
    "fmt0_ans0": "format broken, wrong",
}
ROUNDING = 1e-9  # smaller differences between means are rounding errors
Values = Sequence[Sequence[float]]  # one sequence for each problem, one value for each answer
Measure = Callable[[Row], float | None]  # None if the measure does not apply to the answer


@dataclass(frozen=True)
class Bounds:
    """95 % interval `ends`, None if all values are equal; `n_answers` is set if not all answers count."""

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
    "wrong_tokens": lambda row: read_number(row.get("n_tokens")) or None if is_wrong(row) else None,
    "reasoning_chars": lambda row: read_number(row.get("reasoning_chars")) or None,
}


def compute_bounds(rows: Sequence[Row]) -> dict[str, Bounds]:
    """Compute the interval of each share and mean over the answers of one decoding; empty without stored answers."""
    if not rows:
        return {}
    groups = list(group_by_problem(rows).values())
    parts = {name for row in rows for name in row.get("parts") or {}}
    bounds: dict[str, Bounds] = {}
    measures = SHARES | MEANS | {f"reward/{name}": _read_part(name) for name in sorted(parts)}
    if any(row.get("turns") for row in rows):
        measures["mean_turns"] = lambda row: float(len(row.get("turns") or []) + 1)
    for name, measure in measures.items():
        values = [[value for row in group if (value := measure(dict(row))) is not None] for group in groups]
        count = sum(map(len, values))
        if count:
            known = [own for own in values if own]
            ends = _bound(known, share=name in SHARES or _is_share(known))
            bounds[name] = Bounds(ends, None if count == len(rows) else count)
    return bounds


def _read_part(name: str) -> Measure:
    """Return the measure of a part of the reward, which does not apply to an answer without a reward."""
    return lambda row: None if row.get("reward", 0.0) is None else read_number((row.get("parts") or {}).get(name))


def _is_share(values: Values) -> bool:
    """Return whether the values are zeros and ones, with both present, so that their mean is a proportion."""
    return {value for own in values for value in own} == {0.0, 1.0}


def _bound(values: Values, share: bool) -> tuple[float, float] | None:
    """Return the interval of a mean over answers; None if problems have equal values that are not proportions."""
    totals, counts = (np.array([compute(own) for own in values], dtype=np.float64) for compute in (sum, len))
    if share and counts.max() == 1:
        return compute_share_interval(round(totals.sum()), len(values))
    if share and np.ptp(counts) == 0:
        return compute_mean_intervals((totals / counts)[:, None])[0]
    mean = float(totals.sum() / counts.sum())
    spread = float(np.sqrt(((totals - mean * counts) ** 2).sum())) / counts.sum()
    if share:
        return _bound_share(mean, spread, counts)
    if len(values) < 2 or spread < ROUNDING:
        return None
    half = float(compute_student_quantile(np.array(len(values) - 1.0))) * spread
    half *= math.sqrt(len(values) / (len(values) - 1))
    return mean - half, mean + half


def _bound_share(share: float, error: float, counts: Floats) -> tuple[float, float]:
    """Return the interval of a proportion with uneven numbers of answers, as wide at most as that of whole problems."""
    problems = float(counts.sum() ** 2 / (counts**2).sum())
    if problems < 2:
        return 0.0, 1.0
    error *= float(compute_student_quantile(np.array(problems - 1))) / Z * math.sqrt(problems / (problems - 1))
    effective = max(problems, share * (1 - share) / error**2) if error > ROUNDING else problems
    low, high = compute_share_intervals(np.array(share), np.array(effective))
    return float(low), float(high)
