"""Each alarm rings where its condition is met, once, and is silent beside it; whole runs that went well raise none."""

from __future__ import annotations

from typing import Any

import pytest

from qed.guards.alarms import CONDITIONS, Alarms
from qed.loops.metrics import merge_updates

# A step of 128 answers as a run that goes well has it.
FINE = {
    "train/rows": 128,
    "train/live_rows": 96,
    "reward/mean": 0.5,
    "accuracy": 0.5,
    "format": 0.95,
    "groups/zero_std": 0.25,
    "groups/all_right": 0.2,
    "groups/all_wrong": 0.05,
    "grading/timeouts": 0,
    "grading/errors": 0,
    "length/total": 128 * 20,
    "length/mean": 20.0,
    "length/truncated_frac": 0.0,
    "policy/entropy": 0.2,
    "kl/ref": 0.001,
    "kl/old": 0.0,
    "ratio/log_max": 0.1,
    "mismatch/logp": 0.001,
    "mismatch/kl": 1e-6,
}
EQUAL = {"groups/zero_std": 1.0, "train/live_rows": 0}
WRONG = {**EQUAL, "accuracy": 0.0, "groups/all_wrong": 1.0, "reward/mean": 0.0}
UNREADABLE = {**WRONG, "format": 0.0}
CUT = {**UNREADABLE, "length/truncated_frac": 1.0}
RIGHT = {**EQUAL, "accuracy": 1.0, "groups/all_right": 1.0, "reward/mean": 1.0}


def steps(*parts: tuple[int, dict[str, float]]) -> list[dict[str, Any]]:
    """So many steps with these figures, one part after the other."""
    return [{**FINE, **change} for count, change in parts for _ in range(count)]


def measured(*accuracies: float) -> list[dict[str, Any]]:
    return [{"eval/task/greedy/avg@1": accuracy, "eval/task/sampled/avg@1": 1.0} for accuracy in accuracies]


def mixed(accuracies: list[float], rewards: list[float]) -> list[dict[str, Any]]:
    """An evaluation, then ten steps of a reward, and so on."""
    rows = []
    for accuracy, reward in zip(accuracies, rewards, strict=True):
        rows += measured(accuracy) + steps((10, {"reward/mean": reward, "accuracy": reward}))
    return rows


BLIND, EXPLAINS = {"critic/explained_variance": -0.4}, {"critic/explained_variance": 0.3}

RINGS = {
    "all_truncated": steps((2, {}), (3, CUT)),
    "all_empty": steps((3, {**UNREADABLE, "length/mean": 1.0, "length/total": 128})),
    "all_unreadable": steps((3, UNREADABLE)),
    "all_wrong": steps((3, WRONG)),
    "all_right": steps((3, RIGHT)),
    "all_equal": steps((3, EQUAL)),
    "entropy_collapse": steps((10, {}), (10, {"policy/entropy": 0.01})),
    "length_runaway": steps((10, {}), (10, {"length/mean": 50.0, "length/truncated_frac": 0.4})),
    "kl_spike": steps((12, {}), (1, {"kl/ref": 0.5})),
    "ratio_spike": steps((12, {}), (1, {"ratio/log_max": 8.0})),
    "mismatch": steps((3, {"mismatch/kl": 0.1})),
    "growing_gap": steps((10, {"sampler/logp_gap_mean": 0.01}), (10, {"sampler/logp_gap_mean": 0.04})),
    "reward_hacking": mixed([0.5, 0.5, 0.49, 0.5], [0.3, 0.4, 0.5, 0.6]),
    "wrong_earns_more": steps((10, {}), (10, {"reward/inverted": 0.25})),
    "ungraded": steps((1, {"grading/timeouts": 20})),
    "without_reward": steps((1, {"grading/without_reward": 20})),
    "format_only": steps((10, {"format": 0.2, "accuracy": 0.1}), (10, {"format": 0.99, "accuracy": 0.12})),
    "blind_critic": steps((1, EXPLAINS), (4, {"critic/explained_variance": 0.0}), (6, BLIND)),
}
# Near misses: what a good run does, or what another alarm is about.
SILENT = {
    "all_truncated": steps((2, CUT), (1, {}), (2, CUT)),
    "all_empty": steps((9, {"length/mean": 1.0, "length/total": 128})),
    "all_unreadable": steps((9, WRONG), (3, CUT)),
    "all_wrong": steps((2, WRONG), (1, {**WRONG, "accuracy": 0.01}), (2, WRONG), (1, {}), (3, UNREADABLE)),
    "all_right": steps((2, RIGHT), (1, {}), (2, RIGHT)),
    "all_equal": steps((9, {**EQUAL, "train/live_rows": 128})),
    "entropy_collapse": steps((10, {}), (30, {"policy/entropy": 0.01, "accuracy": 0.95})),
    "length_runaway": steps((10, {}), (30, {"length/mean": 80.0, "length/truncated_frac": 0.4, "accuracy": 0.7})),
    "kl_spike": steps(*((5, {"kl/ref": 0.01 * number, "kl/old": 0.05}) for number in range(1, 30))),
    "ratio_spike": steps((40, {"ratio/log_max": 6.0}), (1, {"ratio/log_max": 9.0})),
    "growing_gap": steps((10, {"sampler/logp_gap_mean": 1e-7}), (10, {"sampler/logp_gap_mean": 0.01})),
    "mismatch": steps((2, {"mismatch/kl": 0.1}), (1, {}), (2, {"mismatch/logp": 0.3})),
    "reward_hacking": mixed([0.5, 0.5, 0.55, 0.6], [0.3, 0.4, 0.5, 0.6]),
    "wrong_earns_more": steps((1, {"reward/inverted": 0.9}), (40, {"reward/inverted": 0.1})),
    "ungraded": steps((30, {"grading/timeouts": 1, "grading/errors": 1})),
    "without_reward": steps((30, {"grading/without_reward": 2})),
    "format_only": steps((10, {"format": 0.2, "accuracy": 0.1}), (30, {"format": 0.99, "accuracy": 0.4})),
    # It takes a while to learn, has bad steps, and has no figure where all answers end alike.
    "blind_critic": steps((9, BLIND), (1, EXPLAINS), (9, BLIND), (1, EXPLAINS), (9, BLIND), (1, {})),
}


def rung(rows: list[dict[str, Any]]) -> list[str]:
    alarms = Alarms()
    return [alarm.name for row in rows for alarm in alarms.check(row)]


def test_every_condition_is_tried() -> None:
    names = {condition.__name__ for condition in CONDITIONS}
    assert names == set(RINGS) == set(SILENT)
    assert all(condition.__doc__ for condition in CONDITIONS)


def test_held_out_accuracy_is_compared_on_the_tasks_of_all_evaluations() -> None:
    """Between the ends of a phase only the validation part is evaluated, and benchmarks may be easier or harder."""

    def run(benchmark: float, *validation: float) -> list[str]:
        rows = mixed(list(validation), [0.3, 0.4, 0.5, 0.6])
        rows[0] = {**rows[0], "eval/benchmark/greedy/avg@1": benchmark}
        return rung(rows)

    assert run(0.9, 0.3, 0.4, 0.5, 0.5) == []
    assert run(0.1, 0.5, 0.5, 0.45, 0.4) == ["reward_hacking"]


def test_a_spike_of_one_update_is_one_of_its_step() -> None:
    """The other updates of the step do not average it away, and an update that has no such figure changes nothing."""
    updates = [{"ratio/log_max": 0.1, "train/rows": 4, "train/loss": 1.0}, {"ratio/log_max": 8.0, "train/rows": 3}]
    merged = merge_updates([*updates, {"train/rows": 2, "train/loss": 2.0}])
    assert merged == {"ratio/log_max": 8.0, "train/rows": 9, "train/loss": 1.5}
    assert rung([*steps((12, {})), {**FINE, **merged}]) == ["ratio_spike"]
    assert merge_updates([]) == {}


@pytest.mark.parametrize("name", RINGS)
def test_it_rings_once_and_alone(name: str) -> None:
    rows = RINGS[name]
    assert rung(rows) == [name]
    assert rung([*rows, *rows[-1:] * 40]).count(name) == 1


@pytest.mark.parametrize("name", RINGS)
def test_what_it_says_are_whole_sentences_with_advice(name: str) -> None:
    alarms = Alarms()
    (told,) = [alarm.told for row in RINGS[name] for alarm in alarms.check(row)]
    assert told.endswith(".")
    assert told.count(". ") + told.count(": ") >= 1
    assert len(told) < 500


@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent_beside_its_condition(name: str) -> None:
    assert name not in rung(SILENT[name])


def test_a_problem_without_signal_is_named_within_five_steps() -> None:
    for condition in (CUT, UNREADABLE, WRONG, RIGHT, EQUAL):
        assert len(rung(steps((5, condition)))) == 1


def test_a_run_that_goes_well_raises_none() -> None:
    """SFT has no rewards; RL that solves its task becomes sure of itself, long and mostly equal."""
    sft = [
        {"train/rows": 32, "train/live_rows": 32, "train/loss": 1 / n, "policy/entropy": 1 / n} for n in range(1, 99)
    ]
    going = [
        {
            **FINE,
            "accuracy": min(0.97, 0.4 + n / 150),
            "reward/mean": min(0.97, 0.4 + n / 150),
            "policy/entropy": 0.22 / (1 + n / 20),
            "length/mean": 10 + n / 8,
            "groups/zero_std": min(0.8, n / 100),
        }
        for n in range(120)
    ]
    for start, accuracy in ((0, 0.58), (41, 0.81), (82, 0.85)):
        going.insert(start, measured(accuracy)[0])
    assert rung(sft) == []
    assert rung(going) == []


def test_figures_that_are_missing_or_strange_are_no_alarm() -> None:
    strange: list[dict[str, Any]] = [{"train/rows": 4}, {"train/rows": 0, "length/mean": 0, "length/total": 0}]
    strange += [
        {**FINE, "mismatch/kl": float("nan"), "kl/ref": float("nan")},
        {"step": 3},
        {"eval/x/greedy/avg@1": None},
    ]
    assert rung(strange * 20) == []
