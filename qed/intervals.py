"""95 % intervals for the figures that a run reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution


def wilson(right: int, count: int) -> tuple[float, float]:
    """The score interval of a proportion (Wilson 1927): honest for small counts and near 0 and 1."""
    if count == 0:
        return 0.0, 1.0
    share, z = right / count, Z * Z / count
    middle = (share + z / 2) / (1 + z)
    half = Z * math.sqrt(share * (1 - share) / count + z / (4 * count)) / (1 + z)
    # At a share of 0 or 1 the bound is exact; rounding must not push it past the share.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def clustered(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The interval of a mean over problems that were each answered several times: the problem is the unit, not the
    answer."""
    means = [fmean(group) for group in groups]
    if len(means) < 2:
        return 0.0, 1.0
    if max(means) == min(means):
        # Equal problems say nothing of their spread; the number of them still bounds what can be claimed.
        return wilson(round(sum(means)), len(means))
    half = Z * stdev(means) / math.sqrt(len(means))
    return max(0.0, fmean(means) - half), min(1.0, fmean(means) + half)
