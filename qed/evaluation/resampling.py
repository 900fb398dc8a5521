"""Compute 95 % intervals and tests by resampling problems, because answers to the same problem are not independent.

The interval is the BCa bootstrap (Efron 1987, "Better bootstrap confidence intervals"). Its normal quantile is widened
by the square root of n / (n - 1), because the spread of resamples of n values is too small by this factor. In
simulations with 30 problems its coverage is 93 to 97 % for a mean accuracy of 10 % or more, and 90 % at 5 %; that of
plain percentiles of the same resamples is 90 and 85 %.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from qed.evaluation.distributions import Z
from qed.evaluation.intervals import compute_wilson_interval

RESAMPLES = 2_000
CELLS = 4_000_000  # numbers in memory at once
SEED = 20_261_120
NORMAL = NormalDist()
MIN_SLOPE = 1 / 3  # limits the skewness correction, which is unreliable beyond stretching a quantile threefold
Floats = NDArray[np.float64]


def bootstrap_intervals(values: Floats) -> list[tuple[float, float]]:
    """Compute the interval of the mean of each column over problems.

    Args:
        values: [problems, measures], each in [0, 1]: the value of each measure for each problem.

    Returns:
        the bounds of each measure. Equal values have no spread to resample; they get the Wilson interval of one
        answer per problem.
    """
    means = resample_means(values)
    return [_compute_bounds(values[:, column], np.sort(means[:, column])) for column in range(values.shape[1])]


def resample_means(values: Floats) -> Floats:
    """Return [RESAMPLES, measures]: means over problems drawn with replacement, the same draws for all measures."""
    count = len(values)
    source = np.random.default_rng(SEED)
    block = max(1, CELLS // count)
    means = []
    for start in range(0, RESAMPLES, block):
        weights = source.multinomial(count, np.full(count, 1 / count), size=min(block, RESAMPLES - start))
        means.append(weights @ values / count)
    return np.concatenate(means)


def _compute_bounds(values: Floats, means: Floats) -> tuple[float, float]:
    mean = float(values.mean())
    if np.ptp(values) < 1e-12:
        return compute_wilson_interval(round(mean * len(values)), len(values)) if len(values) > 1 else (0.0, 1.0)
    widened = Z * math.sqrt(len(values) / (len(values) - 1))
    low, high = (_correct_quantile(values, means, side * widened) for side in (-1, 1))
    return min(mean, low), max(mean, high)


def _correct_quantile(values: Floats, means: Floats, quantile: float) -> float:
    """Return the resampled mean at a normal quantile, corrected for bias and skewness."""
    mean = values.mean()
    tolerance = 1e-12
    below = (float((means < mean - tolerance).mean()) + float((means <= mean + tolerance).mean())) / 2
    bias = NORMAL.inv_cdf(min(1 - 1e-3, max(1e-3, below)))
    away = values - mean
    skewness = float((away**3).sum() / (6 * (away**2).sum() ** 1.5))
    moved = bias + quantile
    level = NORMAL.cdf(bias + moved / max(MIN_SLOPE, 1 - skewness * moved))
    place = round(level * len(means) - 0.5)
    return float(means[min(len(means) - 1, max(0, place))])
