"""Compare two evaluations of the same problems: the difference, its significance, and the problems that changed.

The p-value is below 0.05 exactly where the 95 % interval excludes zero.

For one answer per problem the p-value is McNemar's exact one. The interval is that of the score test with one gain and
one loss more, z = (gained - lost) / sqrt(gained + lost + 2): the adjusted Wald interval of Bonett and Price (2012,
"Adjusted Wald confidence interval for a difference of binomial proportions based on paired data") with the variance of
the null. Where it just excludes zero and the exact test does not, it is extended to zero.

For several answers one problem more gains and one more loses as much as the problems that change do, and the quantile
is Student's with as many degrees of freedom as problems carry the change. The p-value is one minus the level at which
this interval ends at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from qed.evaluation.distributions import (
    LEVEL,
    Floats,
    Z,
    compute_normal_tail,
    compute_student_quantile,
    compute_student_tail,
)
from qed.evaluation.intervals import MIN_PROBLEMS, ROUNDING, compute_mcnemar_p
from qed.evaluation.measures import ACCURACY, Row, measure_problems
from qed.evaluation.summary import group_by_problem

TESTS = {True: "exact McNemar", False: "adjusted t over problems"}  # of differences of single answers, and of others


@dataclass(frozen=True)
class Change:
    """A problem whose measure has changed."""

    problem: str
    before: float
    after: float


@dataclass(frozen=True)
class Spread:
    """The adjusted mean of differences and its standard error, twice.

    `spread` is that of the differences, with `df` degrees of freedom: the number of problems that carry the change; it
    is infinite for single answers. `bound` is that of single answers with as many gains and losses, which is at least
    as large and takes no degrees of freedom. `total` is the number of problems and added ones.
    """

    middle: Floats
    spread: Floats
    df: Floats
    bound: Floats
    total: int

    @property
    def widest(self) -> Floats:
        """Return the half-width of the interval from `bound`: the differences that its score test does not reject."""
        left = 1 - Z * Z / self.total
        half: Floats = Z * self.bound / math.sqrt(left) if left > 0 else np.full_like(self.bound, 2.0)
        return half


@dataclass(frozen=True)
class PairedTest:
    """The result of a paired test; the measure is a mean over the `n` problems in both evaluations.

    `p_value` is below 0.05 exactly where the 95 % interval excludes 0. It is None for fewer than 6 problems; `note`
    says so then, else it is empty.
    """

    n: int
    unpaired: int
    before: float
    after: float
    ci_lo: float
    ci_hi: float
    p_value: float | None
    test: str
    gained: tuple[Change, ...]
    lost: tuple[Change, ...]
    note: str = ""
    measure: str = ACCURACY

    @property
    def difference(self) -> float:
        """Return after minus before."""
        return self.after - self.before


def compare_paired(before: Sequence[Row], after: Sequence[Row], measure: str = ACCURACY) -> PairedTest | None:
    """Compare the answers of two evaluations problem by problem; None if they have no problem in common.

    Problems are the same if their ids and golds are equal.

    Args:
        before: the rows of one evaluation.
        after: the rows of the other one.
        measure: `accuracy`, `pass@K` or `maj@K`.

    Raises:
        UsageError: there is no such measure, or a problem has fewer than K answers.
    """
    one, other = group_by_problem(before), group_by_problem(after)
    shared = [problem for problem in one if problem in other and _read_gold(one[problem]) == _read_gold(other[problem])]
    if not shared:
        return None
    old, new = (measure_problems([side[problem] for problem in shared], measure) for side in (one, other))
    changes = [
        Change(problem, was, now) for problem, was, now in zip(shared, old, new, strict=True) if abs(now - was) > 1e-12
    ]
    changes.sort(key=lambda change: -abs(change.after - change.before))
    gained = tuple(change for change in changes if change.after > change.before)
    lost = tuple(change for change in changes if change.after < change.before)
    differences = np.array(new) - np.array(old)
    low, high, p_value = compute_difference(differences)
    test = TESTS[_is_single(differences)]
    unpaired = len(one) + len(other) - 2 * len(shared)
    note = "" if p_value is not None else describe_too_few(len(shared))
    shares = fmean(old), fmean(new)
    return PairedTest(len(shared), unpaired, *shares, low, high, p_value, test, gained, lost, note, measure)


def describe_too_few(count: int) -> str:
    """Say why a comparison of so few problems has no p-value."""
    problems = "1 problem is" if count == 1 else f"{count} problems are"
    return f"{problems} too few for a test: it takes {MIN_PROBLEMS}"


def compute_difference(differences: Floats) -> tuple[float, float, float | None]:
    """Compute the 95 % interval of a mean difference, [problems] in [-1, 1], and the p-value of the null that it is 0.

    Of fewer than 6 problems there is no p-value, and the interval contains 0: if all problems change alike, the chance
    that they do so by luck is above 5 %.
    """
    lows, highs, p_values = compute_differences(differences[:, None])
    low, high, p_value = float(lows[0]), float(highs[0]), float(p_values[0])
    few = len(differences) < MIN_PROBLEMS
    if _is_single(differences):
        p_value = compute_mcnemar_p(int((differences > 0.5).sum()), int((differences < -0.5).sum()))
    if few or p_value >= LEVEL:
        low, high = min(0.0, low), max(0.0, high)
    return low, high, None if few else p_value


def compute_differences(differences: Floats) -> tuple[Floats, Floats, Floats]:
    """Compute the interval and the p-value of each column of differences, [problems, columns] in [-1, 1].

    The p-values of single answers are those of the score test. None is below the chance that all signs are equal.
    """
    parts = estimate_spread(differences)
    score = parts.middle / np.hypot(parts.bound, parts.middle / math.sqrt(parts.total))
    tails = np.minimum(compute_student_tail(parts.middle / parts.spread, parts.df), compute_normal_tail(score))
    half = np.minimum(compute_student_quantile(parts.df) * parts.spread, parts.widest)
    p_values = np.maximum(tails, 2.0 ** (1 - len(differences)))
    return *enclose(differences.mean(0), parts.middle, half), p_values


def estimate_spread(differences: Floats) -> Spread:
    """Estimate the standard error of the mean of each column of differences, [problems, columns] in [-1, 1].

    One problem more gains and one more loses as much as the problems that change do: the root of the mean square of
    their changes, each weighted by its square. This number is one for single answers.
    """
    total = len(differences) + 2
    squares, fourths = (differences**2).sum(0), (differences**4).sum(0)
    changed = squares > 0
    size = np.where(changed, fourths / np.where(changed, squares, 1.0), 1.0)
    carriers = np.where(changed, squares**2 / np.where(changed, fourths, 1.0), 1.0)
    middle = differences.sum(0) / total
    single = np.abs(differences).sum(0) - squares < ROUNDING
    spread, bound = (
        np.sqrt(np.maximum(around / total - middle**2, 0.0) / total)
        for around in (squares + 2 * size, np.abs(differences).sum(0) + 2)
    )
    df = np.clip(carriers, 1.0, max(1, len(differences) - 1))
    return Spread(middle, np.where(single, np.inf, spread), df, bound, total)


def enclose(means: Floats, middle: Floats, half: Floats) -> tuple[Floats, Floats]:
    """Return the bounds `middle` ± `half`, within [-1, 1] and around the means."""
    low, high = np.minimum(means, middle - half), np.maximum(means, middle + half)
    return np.maximum(-1.0, low), np.minimum(1.0, high)


def _is_single(differences: Floats) -> bool:
    """Return whether all differences are those of single answers: -1, 0 or 1."""
    return bool((np.abs(np.abs(differences) - 0.5) > 0.5 - ROUNDING).all())


def _read_gold(rows: Sequence[Row]) -> str:
    return str(rows[0].get("gold"))
