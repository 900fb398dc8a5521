"""Compute the smallest difference that a comparison on given problems is likely to detect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qed.evaluation.distributions import LEVEL, Floats, compute_student_quantile
from qed.evaluation.intervals import MIN_PROBLEMS
from qed.evaluation.measures import ACCURACY, Row, measure_problems
from qed.evaluation.paired import estimate_difference
from qed.evaluation.summary import index_problems

POWER = 0.8
ASSUMED_CORRELATION = 0.5  # between the two sides' values over problems, if only one side is known


@dataclass(frozen=True)
class Power:
    """The power of a paired comparison on `n` problems.

    Attributes:
        n: the number of problems.
        k: the smallest number of answers to any of them.
        difference: the smallest true difference of the measure that is detected in 80 % of comparisons at the 5 %
            level; None for fewer than 6 problems, and if it would be above 1.
        spread: standard deviation of the per-problem differences.
        correlation: correlation of the two sides' values over problems; measured if both are given, else assumed.
        measured: whether both sides were given.
    """

    n: int
    k: int
    difference: float | None
    spread: float
    correlation: float
    measured: bool
    power: float = POWER
    level: float = LEVEL
    measure: str = ACCURACY


def compute_detectable_difference(
    before: Sequence[Row], after: Sequence[Row] | None = None, measure: str = ACCURACY
) -> Power | None:
    """Compute the smallest difference that the paired test detects in 80 % of comparisons, at the 5 % level.

    Args:
        before: the rows of an evaluation.
        after: the rows of another evaluation of the same problems. Without it, the other side is assumed to have the
            same variance and a correlation of 0.5 over problems, or less if the sampling noise of k answers limits it.
        measure: `accuracy`, `pass@K` or `maj@K`.

    Returns:
        the difference and its inputs; None without a common problem.

    Raises:
        UsageError: there is no such measure, or a problem has fewer than K answers.
    """
    one, other = (index_problems(rows or ()) for rows in (before, after))
    shared = [problem for problem in one if after is None or problem in other]
    if not shared:
        return None
    groups = [[side[problem] for problem in shared] for side in ((one, other) if after is not None else (one,))]
    values = [np.array(measure_problems(own, measure)) for own in groups]
    if len(values) == 2:
        differences = values[1] - values[0]
        correlation = _correlate(*values)
    else:
        correlation = min(ASSUMED_CORRELATION, _bound_correlation(groups[0], values[0], measure))
        # Deviations from the mean have the variance of one side; scale them to that of a difference.
        differences = (values[0] - values[0].mean()) * math.sqrt(2 - 2 * correlation)
    fewest = min(len(answers) for own in groups for answers in own)
    difference, spread = _solve(differences)
    return Power(len(shared), fewest, difference, spread, correlation, len(values) == 2, measure=measure)


def _solve(differences: Floats) -> tuple[float | None, float]:
    """Return the detectable difference, and the standard deviation of the per-problem differences."""
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    if len(differences) < MIN_PROBLEMS:
        return None, spread
    found = estimate_difference((differences - differences.mean())[:, None])
    scores = sum(compute_student_quantile(found.df, tail) for tail in (LEVEL, 2 * (1 - POWER)))
    difference = float((scores * found.error)[0])
    return (difference if difference <= 1 else None), spread


def _correlate(one: Floats, other: Floats) -> float:
    """Return the correlation of two sides over problems; 0 if a side does not vary."""
    if one.std() == 0 or other.std() == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def _bound_correlation(groups: Sequence[Sequence[Row]], values: Floats, measure: str) -> float:
    """Return the correlation between two evaluations of one model: the share of the variance that is between problems.

    It is known for the accuracy with several answers per problem; otherwise the bound is 1.
    """
    counts = np.array([len(answers) for answers in groups])
    if measure != ACCURACY or counts.min() < 2 or values.var() == 0:
        return 1.0
    chance = float((values * (1 - values) / (counts - 1)).mean())
    return max(0.0, 1 - chance / float(values.var(ddof=1)))
