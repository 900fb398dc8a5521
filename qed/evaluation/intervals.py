"""Compute closed forms for one answer per problem: the 95 % interval of a proportion, and the exact paired test."""

from __future__ import annotations

import math

Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution


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

    Under the null each changed answer is a fair coin, so the tail of a binomial with one half is counted exactly in
    integers.
    """
    changed = gained + lost
    ways = tail = 1
    for count in range(min(gained, lost)):
        ways = ways * (changed - count) // (count + 1)  # math.comb(changed, count + 1), from the one before
        tail += ways
    return float(min(1.0, 2 * tail / 2**changed))
