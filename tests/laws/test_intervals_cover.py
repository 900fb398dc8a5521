"""A 95 % interval covers the truth in at least 93 % of simulated evaluations, and a test at 5 % errs in at most 6 %.

A simulation draws each problem's difficulty, and each answer from its problem. The truth is the mean over the problems
that might have been drawn. benchmarks/intervals.py has the whole grid; this is a part of it.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from qed.evaluation.intervals import compute_mean_intervals
from qed.evaluation.paired import compute_difference, compute_differences

SIMULATIONS = 1_000
Floats = NDArray[np.float64]
ACCURACIES = (0.01, 0.03, 0.1, 0.5, 0.98)


def draw(source: np.random.Generator, problems: int, accuracy: float, concentration: float) -> Floats:
    """Difficulties of the problems of each simulation; all are equal if the concentration is infinite."""
    if np.isinf(concentration):
        return np.full((problems, SIMULATIONS), accuracy)
    return source.beta(accuracy * concentration, (1 - accuracy) * concentration, (problems, SIMULATIONS))


def cover(values: Floats, truth: float) -> float:
    low, high = np.array(compute_mean_intervals(values)).T
    return float(((low <= truth) & (truth <= high)).mean())


@pytest.mark.parametrize("concentration", [0.5, 2.0, np.inf])
@pytest.mark.parametrize(("problems", "answers"), [(3, 8), (5, 8), (10, 4), (30, 32), (100, 8), (500, 1)])
def test_means_are_covered(problems: int, answers: int, concentration: float) -> None:
    if answers == 1 and np.isfinite(concentration):
        return  # one answer to each problem does not show how uneven they are
    source = np.random.default_rng([problems, answers])
    for accuracy in ACCURACIES:
        difficulty = draw(source, problems, accuracy, concentration)
        assert cover(source.binomial(answers, difficulty) / answers, accuracy) >= 0.93, accuracy


@pytest.mark.parametrize("accuracy", [0.02, 0.5, 0.95])
def test_pass_at_k_is_covered(accuracy: float) -> None:
    """It is bounded but no share of answers, and nearly 1 for a good model."""
    source = np.random.default_rng(5)
    difficulty = draw(source, 30, accuracy, 2.0)
    right = source.binomial(32, difficulty)
    at = np.array([1 - np.prod([(32 - c - i) / (32 - i) for i in range(8)]) if c < 25 else 1.0 for c in range(33)])
    truth = float(np.mean(1 - (1 - source.beta(accuracy * 2, (1 - accuracy) * 2, 1_000_000)) ** 8))
    assert cover(at[right], truth) >= 0.93


@pytest.mark.parametrize("concentration", [0.5, 2.0, np.inf])
@pytest.mark.parametrize(("problems", "answers"), [(6, 8), (30, 32), (100, 8), (200, 1)])
def test_differences_are_covered_and_found_by_luck_as_often_as_is_said(
    problems: int, answers: int, concentration: float
) -> None:
    if answers == 1 and np.isfinite(concentration):
        return  # one answer to each problem does not show how uneven they are
    source = np.random.default_rng([problems, answers])
    for accuracy in ACCURACIES:
        difficulty = draw(source, problems, accuracy, concentration)
        before, same, half = (
            source.binomial(answers, share) / answers for share in (difficulty, difficulty, difficulty / 2)
        )
        low, high, p_values = compute_differences(same - before)
        assert (p_values < 0.05).mean() <= 0.065, accuracy
        assert ((p_values < 0.05) == ((low > 0) | (high < 0))).all(), "the interval and the p-value contradict"
        low, high, p_values = compute_differences(half - before)
        assert ((low <= -accuracy / 2) & (-accuracy / 2 <= high)).mean() >= 0.93, accuracy
        assert ((p_values < 0.05) == ((low > 0) | (high < 0))).all()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 40])
@pytest.mark.parametrize("value", [-1.0, -0.9, 0.0, 0.9, 1.0])
def test_bounds_are_around_the_mean_and_possible(value: float, count: int) -> None:
    """No mean and no difference is outside the range of its values, however few problems there are."""
    low, high, _ = compute_difference(np.full(count, value))
    assert -1 <= low <= value <= high <= 1
    ((low, high),) = compute_mean_intervals(np.full((count, 1), abs(value)))
    assert 0 <= low <= abs(value) <= high <= 1


def test_a_difference_that_all_problems_share_is_found() -> None:
    source = np.random.default_rng(4)
    difficulty = draw(source, 100, 0.5, 2.0)
    before, after = (source.binomial(8, share) / 8 for share in (difficulty, np.minimum(1, difficulty + 0.1)))
    assert (compute_differences(after - before)[2] < 0.05).mean() > 0.95
