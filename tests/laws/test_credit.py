"""Laws of credit: what a group's answers earn depends on their rewards alone, and equal rewards earn nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from qed.algorithms.base import Algorithm
from qed.algorithms.expert_iteration import ExpertIteration
from qed.algorithms.online_dpo import OnlineDpo
from qed.algorithms.parts import estimators
from qed.algorithms.parts.estimators import COMPARING, Estimator
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.ppo import Ppo
from qed.config import plugins
from qed.config.plugins import load_algorithm
from qed.errors import UsageError
from qed.grading.judge import build_failed_grade
from qed.rollout.describe import describe_groups
from qed.rollout.stages import assign_advantages
from qed.runs.run import build_row
from qed.types import Advantage, Grade, Group, Problem, Rollout

# Adding one number to all rewards of a group changes no advantage of these.
SHIFT_INVARIANT = frozenset({"group", "leave_one_out", "opo", "passk", "remax", "gdpo"})
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
FAMILY = [
    name for name in sorted(plugins.list_leaves("algorithms")) if issubclass(load_algorithm(name), PolicyGradient)
]
VARIANTS: list[dict[str, Any]] = [
    *({"estimator": name} for name in ESTIMATORS),
    {"normalize_std": False},
    {"std_over": "batch"},
    {"estimator": "passk", "normalize_std": False},
    {"estimator": "returns", "discount": 0.9},
    {"whiten": True, "normalize_std": False},
    {"estimator": "returns", "whiten": True},
]
REWARDS = st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.1, -0.5]), min_size=2, max_size=6)
GROUPS = st.lists(REWARDS, min_size=1, max_size=4)


def answer(reward: float, length: int = 3, source: Any = "policy", correct: bool | None = None) -> Rollout:
    rollout = Rollout(Problem("p", "?", "1"), (5,), (2,) * length, (-1.0,) * length, "", "stop", source=source)
    rollout.grade = Grade(reward, reward > 0.5 if correct is None else correct, True, None)
    return rollout


def step(rewards: Sequence[Sequence[float]], greedy: float = 0.2) -> list[Group]:
    """Groups of answers of unequal lengths, a greedy one behind them."""
    return [
        [answer(reward, 1 + place % 4) for place, reward in enumerate(own)] + [answer(greedy, source="greedy")]
        for own in rewards
    ]


def build(settings: dict[str, Any]) -> PolicyGradient:
    """A policy gradient; the estimator that reads the values of a critic is that of PPO, the only one with a critic."""
    return (Ppo if settings.get("estimator") == "gae" else PolicyGradient)(**settings)


def earned(settings: dict[str, Any], groups: list[Group]) -> list[list[Advantage]]:
    assign_advantages(groups, build(settings))
    return [[rollout.advantage for rollout in group if rollout.source != "greedy"] for group in groups]


def close(one: list[list[Advantage]], other: list[list[Advantage]]) -> None:
    for own, theirs in zip(one, other, strict=True):
        for mine, thine in zip(own, theirs, strict=True):
            assert mine == pytest.approx(thine, rel=1e-4, abs=1e-4)


@given(rewards=GROUPS, shift=st.sampled_from([-2.0, 0.25, 3.0]))
@pytest.mark.parametrize("name", sorted(SHIFT_INVARIANT))
def test_a_shift_of_all_rewards_changes_nothing(name: str, rewards: list[list[float]], shift: float) -> None:
    moved = [[reward + shift for reward in own] for own in rewards]
    close(earned({"estimator": name}, step(rewards)), earned({"estimator": name}, step(moved, 0.2 + shift)))


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - SHIFT_INVARIANT))
def test_the_others_do_feel_a_shift(name: str) -> None:
    assert earned({"estimator": name}, step([[0, 1, 0.5]])) != earned({"estimator": name}, step([[1, 2, 1.5]]))


@given(rewards=GROUPS, value=st.sampled_from([0.0, 0.1, 1.0, -0.7]), count=st.integers(1, 9))
@pytest.mark.parametrize("settings", [own for own in VARIANTS if own.get("estimator", "group") in COMPARING], ids=str)
def test_equal_rewards_earn_exactly_nothing(
    settings: dict[str, Any], rewards: list[list[float]], value: float, count: int
) -> None:
    """Whatever the other groups earn; a whitened step must be equal as a whole."""
    groups = [[value] * count] if settings.get("whiten") else [[value] * count, *rewards]
    assert earned(settings, step(groups))[0] == [0.0] * count


@given(rewards=GROUPS, seed=st.integers(0, 99))
@example(rewards=[[0.3, -0.5, -0.5, 0.1, 0.3, 0.3]], seed=15)  # a sum of 0, or of 1e-17, by the order
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_the_order_of_answers_and_groups_is_that_of_their_advantages(
    settings: dict[str, Any], rewards: list[list[float]], seed: int
) -> None:
    groups = step(rewards)
    before = earned(settings, groups)
    pairs = [list(zip(group, own, strict=False)) for group, own in zip(groups, before, strict=True)]
    source = random.Random(seed)
    mixed = [source.sample(own, len(own)) for own in source.sample(pairs, len(pairs))]
    greedy = [rollout for group in groups for rollout in group if rollout.source == "greedy"]
    again = [[rollout for rollout, _ in own] + [one] for own, one in zip(mixed, greedy, strict=True)]
    close(earned(settings, again), [[advantage for _, advantage in own] for own in mixed])


LEFT_OUT = [build_failed_grade("timeout", "too long"), Grade(0.0, True, True, "1", has_reward=False)]


@given(rewards=GROUPS, out=st.sampled_from(LEFT_OUT))
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_what_was_not_graded_or_has_no_reward_changes_nothing_and_earns_nothing(
    settings: dict[str, Any], rewards: list[list[float]], out: Grade
) -> None:
    groups = step(rewards)
    for group in groups:
        late = answer(0.0, 7)
        late.grade = out
        group.insert(1, late)
    found = earned(settings, groups)
    assert all(own[1] == 0.0 for own in found)
    close([own[:1] + own[2:] for own in found], earned(settings, step(rewards)))
    nothing = [answer(0.0)]
    nothing[0].grade = out
    assert earned(settings, [nothing]) == [[0.0]]


def without_reward(correct: bool = True) -> Rollout:
    found = answer(0.0, 2)
    found.grade = Grade(0.0, correct, True, "1", has_reward=False)
    return found


@given(rewards=REWARDS, places=st.lists(st.integers(0, 6), max_size=3))
def test_an_algorithm_of_ones_own_sees_the_rewards_that_there_are(rewards: list[float], places: list[int]) -> None:
    class Ranked(Algorithm):
        def advantages(self, rewards: Tensor) -> Tensor:
            return rewards - rewards.min() + 1

    group: Group = [answer(reward) for reward in rewards]
    for place in places:
        group.insert(place, without_reward())
    assign_advantages([group, [without_reward()]], Ranked())
    least = min(rewards)
    assert [one.advantage for one in group if one.has_reward] == [reward - least + 1 for reward in rewards]
    assert all(one.advantage == 0 for one in group if not one.has_reward)


@given(rewards=GROUPS, correct=st.booleans())
def test_an_answer_without_a_reward_is_counted_and_is_in_no_figure_of_rewards(
    rewards: list[list[float]], correct: bool
) -> None:
    groups = [[answer(reward) for reward in own] for own in rewards]
    before = describe_groups(groups)
    found = describe_groups([[without_reward(correct), *group] for group in groups])
    assert (before["grading/without_reward"], found["grading/without_reward"]) == (0, len(groups))
    for name in ("reward/mean", "groups/zero_std"):
        assert found[name] == pytest.approx(before[name])
    nothing = describe_groups([[without_reward(correct)]])
    assert "reward/mean" not in nothing
    assert nothing["groups/zero_std"] == 1


def test_an_answer_that_no_grader_could_judge_is_neither_right_nor_wrong() -> None:
    groups = [[answer(1.0), answer(0.0, length=5)], [answer(1.0)]]
    failed = [replace(answer(0.0, length=40), grade=build_failed_grade("error", "away")) for _ in range(3)]
    before = describe_groups(groups)
    found = describe_groups([[*groups[0], failed[0]], [*groups[1], failed[1]], failed[2:]])
    names = ("accuracy", "format", "groups/all_right", "groups/all_wrong", "length/right_mean", "length/wrong_mean")
    assert {name: found[name] for name in names} == {name: before[name] for name in names}
    assert found["grading/errors"] == 3
    nothing = describe_groups([failed])
    assert not nothing.keys() & {"accuracy", "format", "length/wrong_mean"}
    assert nothing["groups/all_wrong"] == 0


def test_an_answer_without_a_reward_makes_no_group_worth_keeping() -> None:
    """Whatever the grader says of it, it is neither a right nor a wrong answer to learn from."""
    group = [answer(1.0), answer(1.0), without_reward(correct=False)]
    assert PolicyGradient(dynamic_sampling=True).filter_groups([group]) == []
    assert OnlineDpo().rows([group]) == []
    assert OnlineDpo().rows([[without_reward(), answer(0.0)]]) == []
    assert ExpertIteration().rows([[without_reward(), answer(1.0)]])[0].has_reward
    assert build_row(group[2], 1)["reward"] is None


@pytest.mark.parametrize("name", FAMILY)
def test_the_greedy_answer_is_a_baseline_and_no_row(name: str) -> None:
    method = load_algorithm(name)()
    groups = step([[0.0, 1.0, 1.0]])
    assign_advantages(groups, method)
    assert groups[0][-1].advantage == 0.0
    assert method.rows(groups) == groups[0][:-1]
    found = describe_groups(groups)
    assert (found["reward/mean"], found["reward/greedy"]) == (pytest.approx(2 / 3), 0.2)
    assert {key: value for key, value in found.items() if key != "reward/greedy"} == describe_groups([groups[0][:-1]])


def test_a_greedy_answer_that_could_not_be_graded_is_no_baseline() -> None:
    groups = step([[0.0, 1.0]])
    groups[0][-1].grade = build_failed_grade("error", "IndexError")
    assert earned({"estimator": "remax"}, groups) == [[0.0, 0.0]]
    groups = step([[0.0, 1.0]])
    groups[0][-1].grade = without_reward().grade
    assert earned({"estimator": "remax"}, groups) == [[0.0, 0.0]]
    assert earned({"estimator": "remax"}, step([[0.0, 1.0]], greedy=0.25)) == [[-0.25, 0.75]]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_group_of_one_is_refused_where_answers_are_compared(name: Estimator) -> None:
    method = build({"estimator": name})
    method.check(2)
    if name not in COMPARING:
        method.check(1)
        return
    with pytest.raises(UsageError, match=r"sampling\.group_size is 1, but algorithm\.estimator="):
        method.check(1)
    assert earned({"estimator": name}, step([[0.7]])) == [[0.0]]


@given(rewards=REWARDS, correct=st.lists(st.booleans(), min_size=6, max_size=6))
def test_dynamic_sampling_looks_at_correctness_and_not_at_shaped_rewards(
    rewards: list[float], correct: list[bool]
) -> None:
    group = [answer(reward, correct=right) for reward, right in zip(rewards, correct, strict=False)]
    assert PolicyGradient().filter_groups([group]) == [group]
    kept = PolicyGradient(dynamic_sampling=True).filter_groups([group])
    assert bool(kept) == (len(set(correct[: len(rewards)])) == 2)


def test_truncated_answers_leave_the_rows_but_not_the_statistics() -> None:
    groups = step([[0.0, 1.0, 1.0]])
    groups[0][0].stop_reason = "length"
    method = PolicyGradient(mask_truncated=True, normalize_std=False)
    assign_advantages(groups, method)
    assert [rollout.advantage for rollout in groups[0][:3]] == pytest.approx([-2 / 3, 1 / 3, 1 / 3])
    assert method.rows(groups) == groups[0][1:3]
    assert PolicyGradient().rows(groups) == groups[0][:3]


def test_every_estimator_is_told_apart() -> None:
    assert set(ESTIMATORS) >= SHIFT_INVARIANT | COMPARING | estimators.TOKEN_LEVEL
    used = {load_algorithm(name)().advantage.estimator for name in FAMILY}
    assert used == set(ESTIMATORS) - {"none"}, "an estimator without a leaf is still a choice of every leaf"
    assert all(
        {"advantage", "regularizer"} <= {field.name for field in fields(load_algorithm(name))} for name in FAMILY
    )
