"""Compute 95 % intervals of means over problems, and adjust p-values for several tests.

Answers to one problem are not independent, so the variance is taken between problems. Values in [0, 1] with mean p have
at most the variance of single answers, p (1 - p). The interval is that of a proportion over an effective number of
single answers, p (1 - p) divided by the variance of the mean (Korn and Graubard 1998, "Confidence intervals for
proportions with small expected number of positive counts estimated from survey data"). Two corrections keep the
coverage when few problems contribute to the mean: the variance is shrunk towards its bound with the weight of one
problem, and the quantile is Student's. Both use the number of contributing problems, (sum of values)² / sum of values²,
or the same of 1 - values if that is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qed.evaluation.distributions import Floats, Z, compute_student_quantile

MIN_PROBLEMS = 6  # with fewer, all problems change in the same direction by chance in more than 5 % of cases
MIN_SPREAD = 5  # with fewer problems their variance is not estimated
MIN_EACH = 15  # with fewer right or wrong answers a proportion gets the continuity correction
ROUNDING = 1e-12


def compute_mean_intervals(values: Floats) -> list[tuple[float, float]]:
    """Compute the interval of the mean of each column over problems.

    Args:
        values: [problems, measures], each in [0, 1]: the value of each measure for each problem.

    Returns:
        the bounds of each measure. For single answers these are Wilson's, with the continuity correction if few answers
        are right or wrong.
    """
    if len(values) < 2:
        return [(0.0, 1.0)] * values.shape[1]
    means = values.mean(0)
    low, high = compute_share_intervals(means, _count_effective(values, means))
    return list(zip(np.minimum(low, means).tolist(), np.maximum(high, means).tolist(), strict=True))


def _count_effective(values: Floats, means: Floats) -> Floats:
    """Return the number of single answers whose mean has the same variance, at least one per problem."""
    count = len(values)
    most = means * (1 - means)
    variance = values.var(0, ddof=1)
    known = (most > ROUNDING) & (variance > ROUNDING)
    if count < MIN_SPREAD or not known.any():
        return np.full_like(means, count)
    ratio = np.where(known, variance, 1.0) / np.where(known, most, 1.0)
    carriers = np.minimum(_count_carriers(values), _count_carriers(1 - values))
    drawn = ratio ** (carriers / (carriers + 1))
    quantile = compute_student_quantile(np.maximum(1.0, carriers))
    effective: Floats = count / np.where(known, np.minimum(1.0, drawn * (quantile / Z) ** 2), 1.0)
    return effective


def _count_carriers(values: Floats) -> Floats:
    """Return (sum of values)² / sum of values²: the number of non-zero values if these are all equal."""
    squares = (values**2).sum(0)
    carriers: Floats = values.sum(0) ** 2 / np.where(squares > 0, squares, 1.0)
    return carriers


def compute_share_intervals(shares: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Compute the score intervals of proportions of `counts` answers (Wilson 1927).

    With fewer than 15 right or wrong answers they have the continuity correction (Newcombe 1998, "Two-sided confidence
    intervals for the single proportion"), because Wilson's cover only 82 to 92 % there.
    """
    few = np.minimum(shares, 1 - shares) * counts < MIN_EACH - ROUNDING
    shift = np.where(few, 0.5 / counts, 0.0)
    low = _compute_score_bound(np.maximum(shares - shift, 0.0), counts, -1)
    high = _compute_score_bound(np.minimum(shares + shift, 1.0), counts, 1)
    # At a share of 0 or 1 the bound is exact.
    return np.where(shares <= 0, 0.0, low), np.where(shares >= 1, 1.0, high)


def _compute_score_bound(shares: Floats, counts: Floats, side: int) -> Floats:
    part = Z * Z / counts
    half = Z * np.sqrt(shares * (1 - shares) / counts + part / (4 * counts))
    bound: Floats = np.clip((shares + part / 2 + side * half) / (1 + part), 0.0, 1.0)
    return bound


def compute_share_interval(right: int, count: int) -> tuple[float, float]:
    """Compute the interval of a proportion of independent answers, see `compute_share_intervals`."""
    if count < 2:
        return 0.0, 1.0
    low, high = compute_share_intervals(np.array(right / count), np.array(float(count)))
    return float(low), float(high)


def compute_wilson_interval(right: int, count: int) -> tuple[float, float]:
    """Compute the score interval of a proportion (Wilson 1927), which is accurate for small counts and near 0 and 1."""
    if count == 0:
        return 0.0, 1.0
    share, z = right / count, Z * Z / count
    middle = (share + z / 2) / (1 + z)
    half = Z * math.sqrt(share * (1 - share) / count + z / (4 * count)) / (1 + z)
    # At a share of 0 or 1 the bound is exact; rounding must not push it past the share.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def compute_mcnemar_p(gained: int, lost: int) -> float:
    """Compute the exact two-sided p-value of the null that gains and losses are equally likely (McNemar 1947).

    Under the null each changed answer is a fair coin flip, so the tail of a binomial with p = 1/2 is counted exactly in
    integers.
    """
    changed = gained + lost
    ways = tail = 1
    for count in range(min(gained, lost)):
        ways = ways * (changed - count) // (count + 1)  # math.comb(changed, count + 1), from the one before
        tail += ways
    return float(min(1.0, 2 * tail / 2**changed))


def adjust_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for multiple tests (Holm 1979): rejecting those below 5 % errs anywhere with at most 5 % chance.

    The smallest is multiplied by the number of tests, the next by one less, and so on, with a running maximum. Tests
    without a p-value (None) are not counted and stay None.
    """
    order = sorted((p_value, number) for number, p_value in enumerate(p_values) if p_value is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for place, (p_value, number) in enumerate(order):
        highest = max(highest, min(1.0, p_value * (len(order) - place)))
        adjusted[number] = highest
    return adjusted
