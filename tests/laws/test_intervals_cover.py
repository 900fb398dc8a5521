"""A 95 % interval holds the truth in 93 to 97 % of simulated evaluations: small benchmarks and large, one answer and
many.

A simulation draws each problem's difficulty, and each answer from its problem. The truth is the mean difficulty of the
problems that might have been drawn.
"""

from __future__ import annotations

import numpy as np
import pytest

from qed.evaluation.intervals import compute_wilson_interval
from qed.evaluation.paired import compute_adjusted_wald
from qed.evaluation.resampling import bootstrap_difference, bootstrap_intervals
from qed.evaluation.summary import average_tasks

SIMULATIONS = 1_000


def held(bounds: list[tuple[float, float]], truth: float) -> float:
    return float(np.mean([low <= truth <= high for low, high in bounds]))


@pytest.mark.parametrize(
    ("problems", "answers", "alpha", "beta"),
    [
        (30, 32, 0.2, 1.8),  # AIME, hard: most problems are never solved
        (30, 32, 0.5, 0.5),
        (30, 32, 2.0, 2.0),
        (30, 8, 0.3, 0.3),  # nearly every problem is always or never solved
        (40, 32, 1.0, 1.5),
        (83, 8, 1.5, 0.3),
        (272, 2, 0.3, 0.7),
        (500, 4, 0.5, 0.5),
    ],
)
def test_the_mean_of_several_answers(problems: int, answers: int, alpha: float, beta: float) -> None:
    source = np.random.default_rng(problems + answers)
    difficulty = source.beta(alpha, beta, (problems, SIMULATIONS))
    shares = source.binomial(answers, difficulty) / answers
    assert 0.93 <= held(bootstrap_intervals(shares), alpha / (alpha + beta)) <= 0.97


def test_pass_at_k_of_a_small_benchmark() -> None:
    """What a problem adds to pass@8 of 32 answers is bounded but not a share of answers."""
    source = np.random.default_rng(5)
    right = source.binomial(32, source.beta(0.3, 1.0, (30, SIMULATIONS)))
    at = np.array([1 - np.prod([(32 - c - i) / (32 - i) for i in range(8)]) if c < 25 else 1.0 for c in range(33)])
    # The truth is E[1 - (1-p)^8] over the difficulties.
    truth = float(np.mean(1 - (1 - source.beta(0.3, 1.0, 2_000_000)) ** 8))
    assert 0.93 <= held(bootstrap_intervals(at[right]), truth) <= 0.97


@pytest.mark.parametrize("problems", [30, 500, 1319])
def test_one_answer_to_each_problem(problems: int) -> None:
    """Over accuracies between 5 and 95 %: at a single one whole counts make the coverage jump by a few per cent."""
    source = np.random.default_rng(problems)
    shares = source.uniform(0.05, 0.95, SIMULATIONS)
    bounds = [compute_wilson_interval(int(count), problems) for count in source.binomial(problems, shares)]
    inside = [low <= share <= high for (low, high), share in zip(bounds, shares, strict=True)]
    assert 0.93 <= float(np.mean(inside)) <= 0.97


def test_the_mean_of_tasks() -> None:
    source = np.random.default_rng(3)
    tasks = []
    for problems, alpha, beta in ((30, 0.4, 1.2), (83, 0.8, 0.8), (500, 2.0, 1.0)):
        shares = source.binomial(4, source.beta(alpha, beta, (problems, SIMULATIONS))) / 4
        tasks.append((alpha / (alpha + beta), shares.mean(0), bootstrap_intervals(shares)))
    truth = float(np.mean([each[0] for each in tasks]))
    bounds = []
    for number in range(SIMULATIONS):
        figures = [
            {"accuracy": float(means[number]), "ci_lo": own[number][0], "ci_hi": own[number][1]}
            for _, means, own in tasks
        ]
        mean = average_tasks(figures)
        bounds.append((mean["ci_lo"], mean["ci_hi"]))
    assert 0.93 <= held(bounds, truth) <= 0.97


def test_differences_of_pairs() -> None:
    """Both kinds of difference, and as many false alarms as a test at 5 % may give."""
    source = np.random.default_rng(9)
    single, several, alarms = [], [], []
    for _ in range(SIMULATIONS // 4):
        gained, lost, _same = source.multinomial(200, (0.15, 0.05, 0.8))
        single.append(compute_adjusted_wald(int(gained), int(lost), 200))
        difficulty = source.beta(0.5, 0.8, 60)
        harder = difficulty * 0.8
        before, after = source.binomial(4, difficulty) / 4, source.binomial(4, harder) / 4
        low, high, _p = bootstrap_difference(before, after)
        several.append((low, high))
        alarms.append(bootstrap_difference(before, source.binomial(4, difficulty) / 4)[2] < 0.05)
    assert 0.91 <= held(single, 0.1) <= 0.98
    assert 0.91 <= held(several, -0.2 * 0.5 / 1.3) <= 0.98
    assert 0.02 <= float(np.mean(alarms)) <= 0.09
