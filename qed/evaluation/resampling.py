"""95 % intervals and tests by resampling problems: answers to the same problem are not independent, problems are.

The interval is the BCa bootstrap (Efron 1987, "Better bootstrap confidence intervals"), its normal quantile widened by
the square root of n / (n - 1), because resampling n values shows a spread that is too small by this factor. In
simulations with 30 problems it covers the truth in 93 to 97 % of cases as long as the mean accuracy is 10 % or more,
and in 90 % at 5 %; plain percentiles of the same resamples cover 90 and 85 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from qed.evaluation.intervals import Z, compute_wilson_interval

RESAMPLES = 2_000
CELLS = 4_000_000  # numbers held at once
SEED = 20_261_120
NORMAL = NormalDist()
LEAST_SLOPE = 1 / 3  # a correction for skewness that stretches a quantile further than threefold is guesswork
Floats = NDArray[np.float64]


def bootstrap_intervals(values: Floats) -> list[tuple[float, float]]:
    """The interval of the mean of each column over problems.

    Args:
        values: [problems, measures], each in [0, 1]: what a problem adds to each measure.

    Returns:
        for each measure the bounds. Equal values say nothing of their spread; there the number of problems bounds what
        can be claimed, as if each had been answered once (Wilson).
    """
    means = resample_means(values)
    return [_compute_bounds(values[:, column], np.sort(means[:, column])) for column in range(values.shape[1])]


def resample_means(values: Floats) -> Floats:
    """[RESAMPLES, measures]: the means over problems drawn with replacement, the same draws for all measures."""
    count = len(values)
    source = np.random.default_rng(SEED)
    block = max(1, CELLS // count)
    found = []
    for start in range(0, RESAMPLES, block):
        weights = source.multinomial(count, np.full(count, 1 / count), size=min(block, RESAMPLES - start))
        found.append(weights @ values / count)
    return np.concatenate(found)


def _compute_bounds(values: Floats, means: Floats) -> tuple[float, float]:
    mean = float(values.mean())
    if np.ptp(values) < 1e-12:
        return compute_wilson_interval(round(mean * len(values)), len(values)) if len(values) > 1 else (0.0, 1.0)
    widened = Z * math.sqrt(len(values) / (len(values) - 1))
    low, high = (_correct_quantile(values, means, side * widened) for side in (-1, 1))
    return min(mean, low), max(mean, high)


def _correct_quantile(values: Floats, means: Floats, quantile: float) -> float:
    """The resampled mean at a normal quantile, corrected for bias and skewness."""
    mean = values.mean()
    tolerance = 1e-12
    below = (float((means < mean - tolerance).mean()) + float((means <= mean + tolerance).mean())) / 2
    bias = NORMAL.inv_cdf(min(1 - 1e-3, max(1e-3, below)))
    away = values - mean
    skewness = float((away**3).sum() / (6 * (away**2).sum() ** 1.5))
    moved = bias + quantile
    level = NORMAL.cdf(bias + moved / max(LEAST_SLOPE, 1 - skewness * moved))
    place = round(level * len(means) - 0.5)
    return float(means[min(len(means) - 1, max(0, place))])


def bootstrap_difference(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """The interval of the mean difference of pairs, and the two-sided p-value of its being zero.

    Problems are resampled with both of their values. The p-value is the share of resamples whose mean lies as far from
    the measured one as that lies from zero.
    """
    values = (np.array(after, dtype=np.float64) - np.array(before, dtype=np.float64))[:, None]
    means = np.sort(resample_means(values)[:, 0])
    mean = float(values.mean())
    far = float((np.abs(means - mean) >= abs(mean) - 1e-12).sum())
    low, high = _compute_bounds(values[:, 0], means)
    return low, high, (far + 1) / (len(means) + 1)
