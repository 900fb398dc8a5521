"""Compare two evaluations of the same problems: the difference, its significance, and the problems that changed.

The p-value is below 0.05 exactly if the 95 % interval excludes zero.

For one answer per problem the p-value is that of McNemar's exact test. The interval is that of the score test with one
gain and one loss added, z = (gained - lost) / sqrt(gained + lost + 2): the adjusted Wald interval of Bonett and Price
(2012, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data") with the
variance under the null. If it just excludes zero but the exact test is not significant, it is extended to zero.

For several answers the interval is Student's. The variance of the differences gets one added gain and one added loss,
each of the typical size of a change, and is shrunk, with the weight of one problem, towards its bound: the variance of
single answers with as many gains and losses. The effective number of changed problems, (sum of squares)² / sum of
fourth powers, gives the degrees of freedom and the weight against the bound. If the interval of single answers is
shorter, it is used instead. The p-value is one minus the confidence level at which the interval ends at zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from qed.evaluation.distributions import (
    LEVEL,
    MAX_DF,
    Floats,
    Z,
    compute_student_quantile,
    compute_student_tail,
)
from qed.evaluation.intervals import MIN_PROBLEMS, MIN_SPREAD, ROUNDING, compute_mcnemar_p
from qed.evaluation.measures import ACCURACY, Row, measure_problems
from qed.evaluation.summary import index_problems

TESTS = {True: "exact McNemar", False: "adjusted t over problems"}  # by whether all differences are of single answers
FEW_CARRIERS = 5
FIELDS = ("middle", "error", "df", "score")


@dataclass(frozen=True)
class Change:
    """A problem whose measure has changed."""

    problem: str
    before: float
    after: float


@dataclass(frozen=True)
class Estimate:
    """The center of an interval, its standard error and degrees of freedom, and the test score of the null of 0."""

    middle: Floats
    error: Floats
    df: Floats
    score: Floats


@dataclass(frozen=True)
class PairedTest:
    """The result of a paired test; the measure is a mean over the `n` problems in both evaluations.

    `p_value` is below 0.05 exactly if the 95 % interval excludes 0. It is None for fewer than 6 problems, which `note`
    then says.
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
    one, other = index_problems(before), index_problems(after)
    shared = [problem for problem in one if problem in other]
    if not shared:
        return None
    old, new = (measure_problems([side[problem] for problem in shared], measure) for side in (one, other))
    changes = [
        Change(name, was, now) for (name, _), was, now in zip(shared, old, new, strict=True) if abs(now - was) > 1e-12
    ]
    changes.sort(key=lambda change: -abs(change.after - change.before))
    gained = tuple(change for change in changes if change.after > change.before)
    lost = tuple(change for change in changes if change.after < change.before)
    differences = np.array(new) - np.array(old)
    low, high, p_value = compute_difference(differences)
    # If nothing changed, both tests agree, and McNemar's is the test for single answers.
    several = not differences.any() and any(len(side[problem]) > 1 for side in (one, other) for problem in shared)
    test = TESTS[_is_single(differences) and not several]
    unpaired = len(one) + len(other) - 2 * len(shared)
    note = "" if p_value is not None else describe_too_few(len(shared))
    shares = fmean(old), fmean(new)
    return PairedTest(len(shared), unpaired, *shares, low, high, p_value, test, gained, lost, note, measure)


def describe_too_few(count: int) -> str:
    """Explain why a comparison of so few problems has no p-value."""
    problems = "1 problem is" if count == 1 else f"{count} problems are"
    return f"{problems} too few for a test, which needs {MIN_PROBLEMS}"


def compute_difference(differences: Floats) -> tuple[float, float, float | None]:
    """Compute the 95 % interval of a mean difference, [problems] in [-1, 1], and the p-value of the null that it is 0.

    With fewer than 6 problems there is no p-value, and the interval contains 0: even if all problems change in the same
    direction, this happens by chance in more than 5 % of cases.
    """
    lows, highs, p_values = compute_differences(differences[:, None])
    low, high, p_value = float(lows[0]), float(highs[0]), float(p_values[0])
    if len(differences) < MIN_PROBLEMS:
        return low, high, None
    if _is_single(differences):
        p_value = compute_mcnemar_p(int((differences > 0.5).sum()), int((differences < -0.5).sum()))
        if p_value >= LEVEL:
            low, high = min(0.0, low), max(0.0, high)
    return low, high, p_value


def compute_differences(differences: Floats) -> tuple[Floats, Floats, Floats]:
    """Compute the interval and the p-value of each column of differences, [problems, columns] in [-1, 1].

    Single answers get the p-values of the score test. No p-value is below the probability that all signs are equal by
    chance. For fewer than 6 problems all are 1.
    """
    count = len(differences)
    found = estimate_difference(differences)
    low, high = enclose(differences.mean(0), found)
    if count < MIN_PROBLEMS:
        return np.minimum(low, 0.0), np.maximum(high, 0.0), np.ones_like(low)
    return low, high, np.maximum(compute_student_tail(found.score, found.df), 2.0 ** (1 - count))


def estimate_difference(differences: Floats) -> Estimate:
    """Estimate the mean of each column of differences, [problems, columns] in [-1, 1], and its standard error."""
    count, total = len(differences), len(differences) + 2
    sizes, squares, fourths = ((np.abs(differences) ** power).sum(0) for power in (1, 2, 4))
    middle = differences.sum(0) / total
    bound = (sizes + 2) / total - middle**2
    left = 1 - Z * Z / total
    widest = np.sqrt(bound / total / left) if left > 0 else np.full_like(middle, 2.0)
    single = Estimate(middle, widest, np.full_like(middle, MAX_DF), middle / np.sqrt((sizes + 2) / total**2))
    if count < MIN_SPREAD:
        return single
    changed = squares > 0
    size = np.where(changed, fourths / np.where(changed, squares, 1.0), 1.0)
    carriers = np.where(changed, squares**2 / np.where(changed, fourths, 1.0), 0.0)
    # Normal differences have an effective number of a third of the problems; a large one means a reliable variance.
    carriers = carriers * np.maximum(1.0, carriers / FEW_CARRIERS)
    variance = np.minimum((squares + 2 * size) / total - middle**2, bound)
    error = np.sqrt(variance ** (carriers / (carriers + 1)) * bound ** (1 / (carriers + 1)) / count)
    df = np.clip(carriers, 1.0, count - 1)
    mean = differences.mean(0)
    shorter = (sizes - squares > ROUNDING) & (compute_student_quantile(df) * error < Z * widest)
    several = Estimate(mean, error, df, mean / error)
    return Estimate(*(np.where(shorter, getattr(several, name), getattr(single, name)) for name in FIELDS))


def enclose(means: Floats, found: Estimate) -> tuple[Floats, Floats]:
    """Return the bounds of an estimate, clipped to [-1, 1] and widened to include the means."""
    half = compute_student_quantile(found.df) * found.error
    low, high = np.minimum(means, found.middle - half), np.maximum(means, found.middle + half)
    return np.maximum(-1.0, low), np.minimum(1.0, high)


def _is_single(differences: Floats) -> bool:
    """Return whether all differences are those of single answers: -1, 0 or 1."""
    return bool((np.abs(np.abs(differences) - 0.5) > 0.5 - ROUNDING).all())
