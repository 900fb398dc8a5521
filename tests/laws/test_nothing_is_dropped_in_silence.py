"""Law 7: whatever is cut, left out or without signal is counted in the step's record or in an event."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import make_model, make_rollout

from qed.algorithms.grpo import Grpo
from qed.config.plugins import load_algorithm
from qed.config.settings import LearnerSettings
from qed.errors import Diverged, QedError
from qed.evaluation.debug_generations import compute_diversity
from qed.grading.judge import build_failed_grade
from qed.rollout.describe import describe_groups
from qed.rollout.stages import assign_advantages, grade, split_minibatches
from qed.training.batch import COUNTS
from qed.training.learner import Learner
from qed.types import Grade, Group, Problem, Rollout


def answers(rewards: Sequence[float], stop: Sequence[str] = (), lengths: Sequence[int] = ()) -> Group:
    """A group with given rewards; above 0.5 is correct."""
    group = []
    for number, reward in enumerate(rewards):
        length = lengths[number] if lengths else 3
        rollout = Rollout(
            Problem("p", "?", "1"), (5,), (2,) * length, (-1.0,) * length, "", stop[number] if stop else "stop"
        )
        rollout.grade = Grade(reward, reward > 0.5, reward > 0, None, {"correct": float(reward > 0.5)})
        group.append(rollout)
    return group


def test_a_steps_record_counts_every_kind_of_answer() -> None:
    """Three groups of two: all right, all wrong, mixed; one answer cut; right answers of 1, 3, 5 tokens, wrong of 7."""
    groups = [
        answers([1.0, 1.0], ["stop", "stop"], [1, 3]),
        answers([0.0, 0.0], ["length", "stop"], [7, 7]),
        answers([1.0, 0.1], ["stop", "stop"], [5, 7]),
    ]
    found = describe_groups(groups)
    assert found == pytest.approx(
        {
            "reward/mean": 3.1 / 6,
            "reward/correct/mean": 3 / 6,
            "reward/inverted": 0,
            "accuracy": 3 / 6,
            "format": 4 / 6,
            "groups/zero_std": 2 / 3,
            "groups/all_right": 1 / 3,
            "groups/all_wrong": 1 / 3,
            "grading/timeouts": 0,
            "grading/errors": 0,
            "grading/without_reward": 0,
            "length/total": 30,
            "length/mean": 30 / 6,
            "length/right_mean": 3,
            "length/wrong_mean": 7,
            "length/truncated_frac": 1 / 6,
        }
    )
    assert describe_groups([]) == {}


def test_an_update_counts_what_it_does_not_compute() -> None:
    """Two of three rows have no advantage: they are rows, they are not live, and their tokens are in the average."""
    rollouts = [make_rollout(random.Random(seed), advantage=float(seed == 1)) for seed in range(3)]
    learner = Learner(make_model(), Grpo(average="token"), LearnerSettings())
    stats = learner.accumulate(rollouts)
    assert [stats[name] for name in COUNTS] == [
        3,
        1,
        sum(len(rollout.output) for rollout in rollouts),
        len(rollouts[1].prompt) + len(rollouts[1].output) - 1,
    ]
    assert learner.accumulate([])["train/rows"] == 0


@pytest.mark.parametrize("budget", [1, 25, 10**6])
def test_the_mismatch_is_a_mean_over_the_tokens_that_a_sampler_told(budget: int) -> None:
    """Given tokens, demonstrations and unknown log-probs are in no count; a sampled log-prob of exactly 0 is in it."""
    rollouts = [make_rollout(random.Random(seed), advantage=1.0) for seed in (0, 1, 2, 3, 4, 7)]
    model = make_model()
    learner = Learner(model, Grpo(), LearnerSettings(tokens_per_microbatch=budget, packing=False))
    learner.score(rollouts, old=True)
    offsets = [0.25, -0.5, 1.0]
    for number, rollout in enumerate(rollouts):
        assert rollout.old_logps is not None
        told = [logp - offsets[place % 3] for place, logp in enumerate(rollout.old_logps)]
        if number < 2:
            rollout.sampled_mask, told[0] = (), (0.0, math.nan)[number]
        rollout.logps = tuple(0.0 if place < rollout.given else value for place, value in enumerate(told))
    rollouts[2].logps = ()
    rollouts[2].sampled_mask = ()
    assert any(rollout.given for rollout in rollouts)
    differences = [
        logp - told
        for rollout in rollouts
        for logp, told in list(zip(rollout.old_logps or (), rollout.logps, strict=False))[rollout.given :]
        if not math.isnan(told)
    ]
    stats = learner.accumulate(rollouts)
    assert stats["mismatch/logp"] == pytest.approx(fmean(map(abs, differences)))
    assert stats["mismatch/kl"] == pytest.approx(fmean(math.exp(one) - 1 - one for one in differences))
    demonstration = [replace(rollouts[2])]
    assert not {"mismatch/logp", "mismatch/kl"} & learner.accumulate(demonstration).keys()


def test_a_step_without_signal_changes_nothing() -> None:
    """Not even by the optimizer's momentum, which a step with a gradient of zero would follow."""
    model = make_model()
    learner = Learner(model, Grpo(), LearnerSettings(lr=0.1))
    learner.update([make_rollout(random.Random(1), advantage=1.0)], step=0)
    before = [parameter.clone() for parameter in model.parameters()]
    stats = learner.update([make_rollout(random.Random(2), advantage=0.0)], step=1)
    assert stats["train/live_rows"] == 0
    assert stats["optim/grad_norm"] == 0
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stops_before_the_step(value: float) -> None:
    model = make_model()
    learner = Learner(model, Grpo(), LearnerSettings(lr=0.1))
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(Diverged, match="before the optimizer step"):
        learner.update([make_rollout(random.Random(0), advantage=value)], step=0)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    with pytest.raises(Diverged, match="problem p"):
        grade([answers([0.0])], lambda groups: [[Grade(value, False, False, None)]])


def test_what_could_not_be_graded_is_counted_and_left_out() -> None:
    groups = [answers([1.0, 1.0, 1.0])]
    late, broken = build_failed_grade("timeout", "too long"), build_failed_grade("error", "IndexError")
    grade(groups, lambda _: [[late, broken, Grade(1.0, True, True, "1")]])
    found = describe_groups(groups)
    # As in the advantages, an answer without a verdict is none with a reward of 0, and no wrong one.
    assert (found["grading/timeouts"], found["grading/errors"], found["reward/mean"]) == (1, 1, 1)
    assert (found["groups/zero_std"], found["accuracy"], found["grading/without_reward"]) == (1, 1, 0)
    with pytest.raises(QedError, match="on all of 3 answers, first with: IndexError"):
        grade(groups, lambda _: [[broken] * 3])


@given(rewards=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.1]), min_size=1, max_size=9), shift=st.floats(-5, 5))
@pytest.mark.parametrize("name", ["reinforce", "grpo", "dr_grpo"])
def test_group_advantages_are_centred_and_ignore_a_shift(name: str, rewards: list[float], shift: float) -> None:
    algorithm = load_algorithm(name)()
    groups = [answers(rewards), answers([reward + shift for reward in rewards])]
    assign_advantages(groups, algorithm)
    one, other = ([rollout.advantage for rollout in group] for group in groups)
    assert sum(one) == pytest.approx(0, abs=1e-9)
    assert one == pytest.approx(other, abs=1e-4)
    if len(set(rewards)) == 1:
        assert one == [0.0] * len(rewards)


@given(bundles=st.integers(0, 40), size=st.integers(0, 90), together=st.integers(1, 4), seed=st.integers())
def test_minibatches_are_even_and_hold_every_row_once(bundles: int, size: int, together: int, seed: int) -> None:
    """Of every pass: whole bundles, as many minibatches as `size` asks for, and sizes that differ by one bundle."""
    rows = [replace(make_rollout(random.Random(number)), index=number) for number in range(bundles * together)]
    parts = [
        [row.index for row in part] for part in split_minibatches(rows, size, together, (seed, "minibatches", 3, 0))
    ]
    found = [part[at : at + together] for part in parts for at in range(0, len(part), together)]
    assert sorted(found) == [list(range(at, at + together)) for at in range(0, len(rows), together)]
    sizes = [len(part) // together for part in parts]
    most = math.ceil(size / together) if size else bundles
    assert len(parts) == max(1, math.ceil(bundles / max(1, most)))
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= most


def test_minibatches_are_even_and_shuffled_anew_in_every_pass() -> None:
    """130 rows of 64 at most make no update of 2 rows; an order belongs to its address alone."""
    rows = [replace(make_rollout(random.Random(number)), index=number) for number in range(130)]

    def split(*address: int | str) -> list[list[int]]:
        return [[row.index for row in part] for part in split_minibatches(rows, 64, 1, address)]

    assert [len(part) for part in split(1, "minibatches", 3, 0)] == [43, 43, 44]
    orders = [split(1, "minibatches", step, number) for step in (3, 4) for number in (0, 1)]
    assert all(one != other for at, one in enumerate(orders) for other in orders[:at])
    assert split(1, "minibatches", 3, 0) == orders[0]
    assert split_minibatches(rows, 130, 1, (1,)) == split_minibatches(rows, 0, 1, (2,)) == [rows]
    assert split_minibatches([], 64) == [[]]


def test_an_answer_without_a_reward_is_counted_and_spoils_no_figure() -> None:
    """Rewards 1 and 1, and none: the group has no signal, and the mean is that of two."""
    group = answers([1.0, 1.0, 0.0], stop=("stop", "length", "stop"))
    assert group[2].grade is not None
    group[2].grade = replace(group[2].grade, has_reward=False)
    figures = compute_diversity([group, answers([0.0, 1.0])])
    assert (figures["answers"], figures["without_reward"], figures["mean_reward"]) == (5, 1, 0.75)
    assert (figures["groups_without_signal"], figures["reward_std_in_a_group"]) == (0.5, 0.25)
    assert (figures["cut_off"], figures["right"], figures["mean_tokens"]) == (0.2, 0.6, 3)
