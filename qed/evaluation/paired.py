"""Compare two evaluations of the same problems: the difference, its significance, and the problems that changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from qed.evaluation.intervals import Z, compute_mcnemar_p
from qed.evaluation.resampling import bootstrap_difference
from qed.evaluation.summary import Row, group_by_problem


@dataclass(frozen=True)
class Change:
    """A problem whose share of right answers has changed."""

    problem: str
    before: float
    after: float


@dataclass(frozen=True)
class PairedTest:
    """The result of a paired test; shares are means over the `n` problems in both evaluations."""

    n: int
    unpaired: int
    before: float
    after: float
    ci_lo: float
    ci_hi: float
    p_value: float
    test: str
    gained: tuple[Change, ...]
    lost: tuple[Change, ...]

    @property
    def difference(self) -> float:
        """Return after minus before."""
        return self.after - self.before


def compare_paired(before: Sequence[Row], after: Sequence[Row]) -> PairedTest | None:
    """Compare the answers of two evaluations problem by problem; None if they have no problem in common.

    Problems are the same if their ids and golds are equal.
    """
    one, other = group_by_problem(before), group_by_problem(after)
    shared = [problem for problem in one if problem in other and _read_gold(one[problem]) == _read_gold(other[problem])]
    if not shared:
        return None
    old, new = ([fmean(bool(row["correct"]) for row in side[problem]) for problem in shared] for side in (one, other))
    changes = [
        Change(problem, was, now) for problem, was, now in zip(shared, old, new, strict=True) if abs(now - was) > 1e-12
    ]
    changes.sort(key=lambda change: -abs(change.after - change.before))
    gained = tuple(change for change in changes if change.after > change.before)
    lost = tuple(change for change in changes if change.after < change.before)
    once = all(len(side[problem]) == 1 for side in (one, other) for problem in shared)
    # Equal differences have no variance to resample, so the interval depends only on the number of problems.
    if once or len({round(now - was, 12) for was, now in zip(old, new, strict=True)}) == 1:
        low, high = compute_adjusted_wald(len(gained), len(lost), len(shared))
        chance, test = compute_mcnemar_p(len(gained), len(lost)), "exact McNemar"
    else:
        low, high, chance = bootstrap_difference(old, new)
        test = "bootstrap over problems"
    unpaired = len(one) + len(other) - 2 * len(shared)
    return PairedTest(len(shared), unpaired, fmean(old), fmean(new), low, high, chance, test, gained, lost)


def compute_adjusted_wald(gained: int, lost: int, count: int) -> tuple[float, float]:
    """Compute the 95 % interval of a difference of paired proportions (Bonett and Price 2012, "Adjusted Wald confidence
    interval for a difference of binomial proportions based on paired data")."""
    up, down = (gained + 1) / (count + 2), (lost + 1) / (count + 2)
    half = Z * math.sqrt((up + down - (up - down) ** 2) / (count + 2))
    return max(-1.0, up - down - half), min(1.0, up - down + half)


def _read_gold(rows: Sequence[Row]) -> str:
    return str(rows[0].get("gold"))
