"""Compare two arms of several runs: the difference over problems and seeds, and how much each of them varies.

An arm is a recipe that was trained several times with different seeds, and all runs answered the same problems.
Problems and seeds are both random samples (crossed random effects), so the variance of the difference is the sum of
two: that of the problems' differences, averaged over seeds, and that of the runs' means. The sampling noise of the
answers is in both and is subtracted once. The degrees of freedom are Satterthwaite's (1946, "An approximate
distribution of estimates of variance components").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qed.evaluation.distributions import Floats, compute_student_tail
from qed.evaluation.intervals import MIN_PROBLEMS
from qed.evaluation.measures import ACCURACY, Row, measure_problems
from qed.evaluation.paired import Estimate, compute_difference, describe_too_few, enclose, estimate_difference
from qed.evaluation.summary import index_problems

MOST_DF = 3  # the interval has at most this many degrees of freedom for each one of the seeds' variance
MIN_SEEDS = 3  # per arm; with fewer, the variance between seeds is barely known
ONE_SEED = "one run per arm: the interval covers the choice of problems, not of seeds"


@dataclass(frozen=True)
class ArmsTest:
    """The comparison of two arms on the `n` problems that all runs answered; `seeds` counts the runs of each arm.

    Attributes:
        before, after: the measure, a mean over problems and runs.
        ci_lo, ci_hi: the 95 % interval of the difference over problems and seeds.
        p_value: below 0.05 exactly if the interval excludes 0; None for fewer than 6 problems. With one run per arm, it
            is over problems only.
        within: for each arm, the standard deviation of a run's mean due to the choice of problems and answers.
        between: for each arm, the standard deviation between seeds, without the noise of the answers; None for one run
            or one problem.
        runs: the measure of each run of each arm.
        note: why there is no p-value, or what the interval does not cover; else empty.
    """

    n: int
    unpaired: int
    seeds: tuple[int, int]
    before: float
    after: float
    ci_lo: float
    ci_hi: float
    p_value: float | None
    within: tuple[float, float]
    between: tuple[float | None, float | None]
    runs: tuple[tuple[float, ...], tuple[float, ...]]
    note: str = ""
    measure: str = ACCURACY

    @property
    def difference(self) -> float:
        """Return after minus before."""
        return self.after - self.before


def compare_arms(
    before: Sequence[Sequence[Row]], after: Sequence[Sequence[Row]], measure: str = ACCURACY
) -> ArmsTest | None:
    """Compare two arms on the problems that all their runs answered; return None if there is none.

    Problems are the same if their ids and golds are equal. The order of the runs does not matter.

    Args:
        before: the rows of each run of one arm.
        after: the rows of each run of the other one.
        measure: `accuracy`, `pass@K` or `maj@K`.

    Raises:
        UsageError: there is no such measure, or a problem has fewer than K answers.
    """
    runs = [index_problems(rows) for rows in (*before, *after)]
    shared = [problem for problem in runs[0] if all(problem in run for run in runs)]
    if not shared:
        return None
    values = np.array([measure_problems([run[problem] for problem in shared], measure) for run in runs])
    old, new = values[: len(before)], values[len(before) :]
    low, high, p_value, note = compute_arms_difference(old, new)
    unpaired = len(set().union(*runs)) - len(shared)
    spreads = [_compute_spreads(arm) for arm in (old, new)]
    return ArmsTest(
        n=len(shared),
        unpaired=unpaired,
        seeds=(len(old), len(new)),
        before=float(old.mean()),
        after=float(new.mean()),
        ci_lo=low,
        ci_hi=high,
        p_value=p_value,
        within=(spreads[0][0], spreads[1][0]),
        between=(spreads[0][1], spreads[1][1]),
        runs=(tuple(old.mean(1).tolist()), tuple(new.mean(1).tolist())),
        note=note,
        measure=measure,
    )


def compute_arms_difference(old: Floats, new: Floats) -> tuple[float, float, float | None, str]:
    """Compute the interval of the difference of two arms, its p-value and a note, see `ArmsTest`.

    Args:
        old: [runs, problems], values in [0, 1] of one arm.
        new: [runs, problems], those of the other arm.
    """
    count = old.shape[1]
    if count < MIN_PROBLEMS or len(old) == len(new) == 1:
        low, high, p_value = compute_difference(new.mean(0) - old.mean(0))
        return low, high, p_value, describe_too_few(count) if p_value is None else ONE_SEED
    lows, highs, p_values = compute_arms_differences(old[:, :, None], new[:, :, None])
    fewest = min(len(old), len(new))
    note = ""
    if fewest == 1:
        note = "one arm has one run: its seeds are assumed to vary like those of the other arm"
    elif fewest < MIN_SEEDS:
        note = f"{fewest} runs of an arm show little of how much seeds vary: use {MIN_SEEDS} or more"
    return float(lows[0]), float(highs[0]), float(p_values[0]), note


def compute_arms_differences(old: Floats, new: Floats) -> tuple[Floats, Floats, Floats]:
    """Compute intervals and p-values of many pairs of arms, [runs, problems, pairs]; one arm has several runs."""
    differences = new.mean(0) - old.mean(0)
    found = estimate_difference(differences)
    problems = found.error**2
    # Both arms are assumed to have the same variance between seeds: few runs are not enough to estimate two.
    spread, noise, freedom = _pool_seeds([arm for arm in (old, new) if len(arm) > 1])
    share = 1 / len(old) + 1 / len(new)
    seeds, answers = spread * share, noise * share
    total = np.maximum(np.maximum(problems, seeds), problems + seeds - answers)
    df = total**2 / (problems**2 / found.df + seeds**2 / freedom)
    # A variance between seeds that is small by chance must not yield many degrees of freedom.
    error, df = np.sqrt(total), np.clip(df, 1.0, MOST_DF * freedom)
    wider = Estimate(found.middle, error, df, found.middle / error)
    p_values = np.maximum(compute_student_tail(wider.score, df), 2.0 ** (1 - len(differences)))
    return *enclose(differences.mean(0), wider), p_values


def _pool_seeds(arms: Sequence[Floats]) -> tuple[Floats, Floats, int]:
    """Return the variance of the runs' means, the part due to the answers, and the degrees of freedom of the first."""
    degrees = [len(arm) - 1 for arm in arms]
    spread, noise = (
        np.average([compute(arm) for arm in arms], axis=0, weights=degrees)
        for compute in (_compute_seed_variance, _compute_noise)
    )
    return spread, noise, sum(degrees)


def _compute_seed_variance(arm: Floats) -> Floats:
    variance: Floats = arm.mean(1).var(0, ddof=1)
    return variance


def _compute_noise(arm: Floats) -> Floats:
    """Compute the variance of a run's mean due to the answers, from [runs, problems, pairs]."""
    runs, count = arm.shape[:2]
    rest = arm - arm.mean(0) - arm.mean(1, keepdims=True) + arm.mean((0, 1))
    noise: Floats = (rest**2).sum((0, 1)) / ((runs - 1) * (count - 1) * count)
    return noise


def _compute_spreads(arm: Floats) -> tuple[float, float | None]:
    """Return the standard deviations of a run's mean within a seed and between seeds, see `ArmsTest`."""
    within = float(np.sqrt((arm.var(1, ddof=1) / arm.shape[1]).mean())) if arm.shape[1] > 1 else 0.0
    if len(arm) < 2 or arm.shape[1] < 2:
        return within, None
    between = float(arm.mean(1).var(ddof=1) - _compute_noise(arm[:, :, None])[0])
    return within, max(0.0, between) ** 0.5
