"""Arms of several seeds err no more often than is said, and the detectable difference is found as often as is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qed.errors import UsageError
from qed.evaluation.arms import compare_arms, compute_arms_differences
from qed.evaluation.intervals import adjust_holm
from qed.evaluation.paired import compare_paired, compute_differences
from qed.evaluation.power import compute_detectable_difference
from qed.evaluation.summary import average_columns, average_tasks, compute_accuracy, group_by_problem, summarize

SIMULATIONS = 1_000


def build_rows(right: Any) -> list[dict[str, Any]]:
    """Rows of an evaluation: for each problem its answers, right or wrong."""
    return [
        {"group_id": str(problem), "sample_id": number, "gold": "1", "correct": bool(each), "extracted": str(int(each))}
        for problem, answers in enumerate(right)
        for number, each in enumerate(np.atleast_1d(answers))
    ]


@pytest.mark.parametrize("seeds", [(2, 2), (3, 3), (1, 3)])
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_seeds_that_vary_are_no_difference(seeds: tuple[int, int], spread: float) -> None:
    source = np.random.default_rng(3)
    odds = source.normal(size=(60, SIMULATIONS))
    arms = []
    for runs in seeds:
        chances = 1 / (1 + np.exp(-(odds + spread * source.normal(size=(runs, 1, SIMULATIONS)))))
        arms.append(source.binomial(8, chances) / 8)
    low, high, p_values = compute_arms_differences(arms[0], arms[1])
    assert (p_values < 0.05).mean() <= 0.065
    assert ((p_values < 0.05) == ((low > 0) | (high < 0))).all()


def test_arms_say_what_varies() -> None:
    source = np.random.default_rng(5)
    runs = [build_rows(source.random((60, 4)) < share) for share in (0.2, 0.3, 0.4, 0.7, 0.8, 0.9)]
    found = compare_arms(runs[:3], runs[3:])
    assert found is not None
    assert (found.n, found.seeds, found.unpaired, found.note) == (60, (3, 3), 0, "")
    assert found.difference == pytest.approx(0.5, abs=0.05)
    assert found.ci_lo < found.difference < found.ci_hi
    assert found.between[0] == pytest.approx(0.1, abs=0.04)
    assert found.within[0] == pytest.approx((0.3 * 0.7 / 240) ** 0.5, rel=0.3)
    alone = compare_arms(runs[:1], runs[3:4])
    pair = compare_paired(runs[0], runs[3])
    assert alone is not None
    assert pair is not None
    assert (alone.ci_lo, alone.p_value, alone.between) == (pair.ci_lo, pair.p_value, (None, None))
    assert "not of seeds" in alone.note
    few = compare_arms([run[:16] for run in runs[:3]], [run[:16] for run in runs[3:]])
    assert few is not None
    assert few.p_value is None
    assert "too few" in few.note


def test_the_detectable_difference_is_found_in_four_of_five() -> None:
    source = np.random.default_rng(7)
    chances = source.beta(2, 2, 100)
    before, after = (build_rows(chances[:, None] > source.random((8, 100)).T) for _ in range(2))
    power = compute_detectable_difference(before, after)
    assert power is not None
    assert power.difference is not None
    assert (power.n, power.k, power.measured) == (100, 8, True)
    moved = np.clip(chances + power.difference, 0, 1)
    sides = [source.binomial(8, each[:, None], (100, SIMULATIONS)) / 8 for each in (chances, moved)]
    assert 0.65 < (compute_differences(sides[1] - sides[0])[2] < 0.05).mean() < 0.92
    alone = compute_detectable_difference(before)
    assert alone is not None
    assert alone.difference is not None
    assert alone.difference > 0.8 * power.difference
    few = compute_detectable_difference(before[:32])
    assert few is not None
    assert few.difference is None


def test_pass_at_k_and_votes_are_compared() -> None:
    before, after = build_rows([[0, 0, 0, 1]] * 20), build_rows([[0, 1, 1, 1]] * 20)
    passed, voted = (compare_paired(before, after, measure) for measure in ("pass@2", "maj@3"))
    assert passed is not None
    assert voted is not None
    assert (passed.before, passed.after) == pytest.approx((1 / 2, 1.0))
    assert voted.after > voted.before
    for measure in ("pass@5", "pass@0", "best@2", "maj@x"):
        with pytest.raises(UsageError):
            compare_paired(before, after, measure)


def test_columns_of_the_same_problems_are_clustered() -> None:
    """The same column twice is no more than one; tasks with problems of their own are."""
    rows = build_rows(np.arange(100)[:, None] < 40)
    one, twice = average_columns([rows]), average_columns([rows, rows])
    assert (twice["ci_lo"], twice["ci_hi"]) == pytest.approx((one["ci_lo"], one["ci_hi"]))
    apart = average_tasks([summarize(rows)] * 2)
    assert apart["ci_hi"] - apart["ci_lo"] < 0.8 * (twice["ci_hi"] - twice["ci_lo"])


def test_too_few_problems_are_said() -> None:
    assert summarize(build_rows([[1, 0]] * 5))["too_few"]
    assert "too_few" not in summarize(build_rows([[1, 0]] * 6))
    assert compute_accuracy(list(group_by_problem(build_rows([[1, 0]] * 3)).values()))["too_few"]


def test_holms_adjustment() -> None:
    """The example of three tests: 0.01, 0.04, 0.03 become 0.03, 0.06, 0.06."""
    assert adjust_holm([0.01, None, 0.04, 0.03]) == [
        pytest.approx(0.03),
        None,
        pytest.approx(0.06),
        pytest.approx(0.06),
    ]
    assert adjust_holm([0.7, 0.8]) == [1.0, 1.0]


def test_chance_in_the_answers_is_no_correlation() -> None:
    right = np.random.default_rng(0).random((400, 4)) < 0.4
    power = compute_detectable_difference(build_rows(right))
    assert power is not None
    exact = 2.8016 * (2 * 0.4 * 0.6 / 4 / 400) ** 0.5  # two evaluations whose problems are all alike
    assert power.difference == pytest.approx(exact, rel=0.1)
    assert power.correlation < 0.15
