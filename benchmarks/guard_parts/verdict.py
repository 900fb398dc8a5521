"""Decides whether one commit needs more CPU time than another, without reporting mere noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

LIMIT = 1.05  # ratio above which a workload is slower
CONFIDENCE = 0.99  # of each interval; high because there are about ten workloads
DRAWS = 4000
FEWEST = 5  # minimum pairs for a meaningful interval
SLOWER, FASTER, SAME, UNKNOWN = "slower", "faster", "same", "too few rounds"
Pairs = Sequence[tuple[float, float]]


def judge(starts: Sequence[Pairs], limit: float = LIMIT) -> dict[str, Any]:
    """Compare the costs of a workload on two commits.

    The ratio is the median over all pairs. Its interval is a bootstrap over starts, and over the pairs of each, because
    the speed of a process depends on its memory layout, which its rounds share.

    Args:
        starts: process starts, each with pairs of costs, base and head, that were measured one after the other.
        limit: a larger ratio counts if its whole interval is above 1.

    Returns:
        `ratio`, head over base; `low` and `high`; `verdict`; the median `base` and `head` costs; and the number of
        `pairs`.
    """
    ratios = [np.array([head / base for base, head in pairs]) for pairs in starts if pairs]
    costs = np.array([pair for pairs in starts for pair in pairs])
    ratio = float(np.median(np.concatenate(ratios)))
    low, high = _draw_interval(ratios)
    verdict = SAME if len(costs) >= FEWEST else UNKNOWN
    if verdict == SAME and ratio > limit and low > 1:
        verdict = SLOWER
    elif verdict == SAME and ratio < 1 / limit and high < 1:
        verdict = FASTER
    base, head = (float(cost) for cost in np.median(costs, axis=0))
    told = {"base": base, "head": head, "pairs": len(costs)}
    return {"ratio": ratio, "low": low, "high": high, "verdict": verdict, **told}


def _draw_interval(ratios: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> tuple[float, float]:
    """Return the bootstrap interval of the median of all ratios."""
    source = np.random.default_rng(0)
    medians = []
    for _ in range(DRAWS):
        chosen = [ratios[place] for place in source.integers(len(ratios), size=len(ratios))]
        medians.append(np.median(np.concatenate([source.choice(own, len(own)) for own in chosen])))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(low), float(high)
