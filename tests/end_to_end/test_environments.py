"""Runs whose answers have turns: cut and resumed, sampled ahead, on two ranks, and over a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apart
import pytest
import turning
from cutting import ONLINE, SMALL, assert_same, by_chance, cut, write_data
from ranks import measure_difference, read_rollouts, run_ranks

from qed.runs.run import read_lines

TURNS = ("--environment", Path(turning.__file__), "--sampling.max_tokens", 24)
AHEAD = ("--sampling.sampler", Path(apart.__file__), "--rollout.max_staleness", 2)
# A random model's attempts end at a letter; what the prompt says between two of them is long.
RETRY = ("--environment", "retry", "--sampling.stop", "e", "--sampling.max_tokens", 60)
# Groups that a step does not use wait for the next one.
DAPO = ("dapo", *ONLINE, "--sampling.group_size", 2, "--algorithm.max_rounds", 3)
VARIANTS: dict[str, tuple[object, ...]] = {
    "dapo": DAPO,
    "sampled ahead": (*DAPO, *AHEAD),
    "replayed": ("exgrpo", *ONLINE, "--algorithm.mixed", "true"),
    "told": ("grpo", *ONLINE, *RETRY),
}


@pytest.fixture(autouse=True)
def _graded_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[object]]:
    problems, _ = write_data(tmp_path)
    return lambda name, *more: [name, "--tasks", problems, *SMALL, *TURNS, *more]


def count_replies(run: Path) -> int:
    rows = [row for path in run.glob("rollouts/*.jsonl.zst") for row in read_lines(path)]
    assert all(row["sampled_mask"] == row["loss_mask"] for row in rows if row["source"] == "policy")
    return sum(0 in row["loss_mask"] for row in rows)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("dapo", marks=pytest.mark.faults),
        "sampled ahead",
        pytest.param("replayed", marks=pytest.mark.faults),
        pytest.param("told", marks=pytest.mark.faults),
    ],
)
def test_a_cut_run_with_turns_goes_on_as_if_it_were_whole(
    qed: Callable[..., Any], command: Callable[..., list[object]], tmp_path: Path, name: str
) -> None:
    chosen = command(*VARIANTS[name])
    whole = tmp_path / "whole"
    made = qed(*chosen, "--out", whole)
    assert made.code == 0, made.err
    assert count_replies(whole) > 10
    part = cut(whole, 2, tmp_path / "part")
    again = qed(*chosen, "--out", part, "--resume")
    assert again.code == 0, again.err
    assert_same(whole, part)


@pytest.mark.parametrize("chosen", [pytest.param((), marks=pytest.mark.faults), RETRY], ids=["turning", "retry"])
def test_two_ranks_take_the_turns_of_one(
    command: Callable[..., list[object]], tmp_path: Path, chosen: tuple[object, ...]
) -> None:
    """In float64, as in `test_runs_of_many_ranks`."""
    arguments = command("grpo", *ONLINE, *chosen, "--model.precision", "float64")
    one, two = (run_ranks(arguments, world, tmp_path / f"run-{world}") for world in (1, 2))
    assert measure_difference(one, two) < 1e-9
    assert read_rollouts(one) == read_rollouts(two)
    assert count_replies(two)


@pytest.mark.faults
def test_a_cut_run_goes_on_with_two_ranks(command: Callable[..., list[object]], tmp_path: Path) -> None:
    arguments = command("grpo", *ONLINE, *RETRY)
    whole = run_ranks(arguments, 2, tmp_path / "whole")
    part = run_ranks([*arguments, "--resume"], 2, cut(whole, 2, tmp_path / "part"))
    assert_same(whole, part)
    assert count_replies(whole)


@pytest.mark.faults
def test_one_server_takes_the_turns_of_the_process(
    qed: Callable[..., Any], command: Callable[..., list[object]], tmp_path: Path
) -> None:
    arguments = command("grpo", *ONLINE, "--steps", 2)
    served = ["--sampling.servers", 1, "--sampling.weights_folder", tmp_path / "weights"]
    for name, more in {"alone": [], "served": served}.items():
        done = qed(*arguments, *more, "--out", tmp_path / name)
        assert done.code == 0, done.err
    part = cut(tmp_path / "served", 1, tmp_path / "part")
    done = qed(*arguments, *served, "--out", part, "--resume")
    assert done.code == 0, done.err
    found = [
        [row for path in sorted((tmp_path / name).glob("rollouts/*.jsonl.zst")) for row in read_lines(path)]
        for name in ("alone", "served", "part")
    ]
    assert found[0] == found[1] == found[2]
    assert count_replies(tmp_path / "served")
