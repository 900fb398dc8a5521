"""Answers to which no reward function applies, against the numbers that TRL computes for the same functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.rewards.base import load_reward
from qed.rollout.describe import describe_groups
from qed.rollout.stages import assign_advantages
from qed.types import Group, Problem, Rollout

# What two functions return for three groups of four answers, None and NaN by turns where they do not apply: a group in
# which one answer has no reward, one in which a single answer has one, one in which both functions apply to three.
TABLE = [
    [(1.0, None), (0.0, 0.5), (None, float("nan")), (float("nan"), 0.25)],
    [(None, None), (None, None), (2.0, None), (None, None)],
    [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (float("nan"), float("nan"))],
]
FUNCTIONS = f"""
nan = float("nan")
TABLE = {TABLE!r}


def first(completions, **columns):
    return [TABLE[int(text[0])][int(text[1])][0] for text in completions]


def second(completions, **columns):
    return [TABLE[int(text[0])][int(text[1])][1] for text in completions]
"""
# By the code of TRL 1.16.0 (GRPOTrainer and RLOOTrainer, float32) with reward_weights [1, 0.5] and num_generations 4;
# by name: scale_rewards group, none and batch, multi_objective_aggregation normalize_then_sum, and RLOO.
ADVANTAGES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "group": ({}, [1.144344, -0.440132, 0, -0.704212, 0, 0, 0, 0, 0.218189, -1.090947, 0.872757, 0]),
    "none": (
        {"normalize_std": False},
        [0.541667, -0.208333, 0, -0.333333, 0, 0, 0, 0, 0.166667, -0.833333, 0.666667, 0],
    ),
    "batch": (
        {"std_over": "batch"},
        [0.71975, -0.276827, 0, -0.442923, 0, 0, 0, 0, 0.221462, -1.107308, 0.885846, 0],
    ),
    "gdpo": ({"estimator": "gdpo"}, [0.84009, -0.420223, 0, -0.419867, 0, 0, 0, 0, 0.342954, -1.714773, 1.371818, 0]),
    "rloo": ({"estimator": "leave_one_out"}, [0.8125, -0.3125, 0, -0.5, 0, 0, 0, 0, 0.25, -1.25, 1.0, 0]),
}
REWARD_MEAN = 0.839286  # TRL's metric `reward`


def graded(folder: Path) -> list[Group]:
    """The answers of the table, graded by the two functions."""
    path = folder / "two.py"
    path.write_text(FUNCTIONS)
    reward = load_reward([f"{path}:first", f"0.5*{path}:second"])
    groups = []
    for number in range(len(TABLE)):
        problem = Problem(str(number), "?", "1")
        group = [Rollout(problem, (1,), (2, 3), (-1.0, -1.0), f"{number}{place}", "stop") for place in range(4)]
        for rollout, grade in zip(group, reward.grade(group), strict=True):
            rollout.grade = grade
        groups.append(group)
    return groups


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_are_those_of_trl(tmp_path: Path, name: str) -> None:
    settings, expected = ADVANTAGES[name]
    groups = graded(tmp_path)
    assign_advantages(groups, PolicyGradient(std_epsilon=1e-4, **settings))
    found = [rollout.advantage for group in groups for rollout in group]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_mean_reward_is_that_of_trl(tmp_path: Path) -> None:
    found = describe_groups(graded(tmp_path))
    assert found["reward/mean"] == pytest.approx(REWARD_MEAN, rel=1e-5)
    assert found["grading/without_reward"] == 5
    assert found["reward/first/mean"] == pytest.approx((1 + 0 + 2 + 1 + 0 + 1) / 6)


def test_a_row_without_a_reward_stays_in_the_average(tmp_path: Path) -> None:
    """TRL sets its advantage to 0 and leaves its tokens in every denominator of the loss."""
    groups = graded(tmp_path)
    algorithm = PolicyGradient()
    assign_advantages(groups, algorithm)
    assert algorithm.rows(groups) == [rollout for group in groups for rollout in group]
