"""Runs of ReLIFT: it learns where nothing is solved, what waits survives a checkpoint, and ranks change nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apart
import pytest
from cutting import ONLINE, SHARED, SMALL, STEPS, assert_same, cut, write_data
from ranks import measure_difference, run_ranks

from qed.randomness import derive_seed
from qed.runs.run import read_lines
from qed.types import Grade, Groups

# Two answers to a problem are often both wrong, and with three demonstrations for an update some wait at most cuts.
WAITING = (*ONLINE, "--sampling.group_size", 2, "--algorithm.buffer", 3)
AHEAD = ("--sampling.sampler", Path(apart.__file__), "--rollout.max_staleness", 2)
DYNAMIC = ("--algorithm.dynamic_sampling", "true", "--algorithm.max_rounds", 3)


def grade_some(groups: Groups, _: Any) -> None:
    """Stands in for grading: chance decides about answers, and demonstrations are right."""
    for rollout in (rollout for some in groups for rollout in some):
        right = rollout.source == "expert" or derive_seed(*rollout.output) % 2 == 0
        rollout.grade = Grade(float(right), right, True, None)


def only_demonstrations_are_right(groups: Groups, _: Any) -> None:
    for rollout in (rollout for some in groups for rollout in some):
        right = rollout.source == "expert"
        rollout.grade = Grade(float(right), right, True, None)


@pytest.mark.parametrize(("buffer", "updates", "waiting"), [(0, [1, 1], [0, 0]), (8, [0, 1], [5, 2])])
def test_where_nothing_is_solved_it_learns_all_the_same(
    qed: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    buffer: int,
    updates: list[int],
    waiting: list[int],
) -> None:
    monkeypatch.setattr("qed.rollout.collector.grade", only_demonstrations_are_right)
    problems, _ = write_data(tmp_path)
    arguments = ["relift", "--tasks", problems, *SHARED, *ONLINE, "--steps", 2, "--sampling.max_tokens", 64]
    made = qed(*arguments, "--algorithm.buffer", buffer, "--out", tmp_path / "run")
    assert made.code == 0, made.err
    rows = [row for row in read_lines(tmp_path / "run" / "metrics.jsonl") if "extra/updates" in row]
    assert [row["extra/updates"] for row in rows] == updates
    assert [row["extra/waiting"] for row in rows] == waiting
    assert [row["train/live_rows"] for row in rows] == [count * (buffer or 5) for count in updates]
    assert all((row.get("extra/loss", 0) > 1) == bool(row["extra/updates"]) for row in rows)
    assert all(row["train/loss"] == 0 for row in rows), "the loss of the RL update has no part of the other"


@pytest.mark.parametrize("more", [(), AHEAD, DYNAMIC], ids=["in turn", "ahead", "dynamic"])
def test_what_waits_survives_a_cut(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[object, ...]
) -> None:
    monkeypatch.setattr("qed.rollout.collector.grade", grade_some)
    problems, _ = write_data(tmp_path)
    arguments = ["relift", "--tasks", problems, *SMALL, *WAITING, "--sampling.max_tokens", 64, *more]
    whole = tmp_path / "whole"
    made = qed(*arguments, "--out", whole)
    assert made.code == 0, made.err
    rows = [row for row in read_lines(whole / "metrics.jsonl") if "extra/updates" in row]
    assert len(rows) == STEPS
    assert any(row["extra/updates"] for row in rows)
    at = next(number for number, row in enumerate(rows, 1) if row["extra/waiting"] and number < STEPS)
    held = read_lines(whole / "checkpoints" / f"step_{at:06d}" / "answers.jsonl")
    assert sum("waiting" in row for row in held) == rows[at - 1]["extra/waiting"]
    part = cut(whole, at, tmp_path / "part")
    again = qed(*arguments, "--out", part, "--resume")
    assert again.code == 0, again.err
    assert_same(whole, part)
    shutil.rmtree(part)


def test_two_ranks_make_the_run_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.rollout.collector.grade", grade_some)  # a rank is a copy of this process
    problems, _ = write_data(tmp_path)
    arguments = ["relift", "--tasks", problems, *SMALL, *WAITING, "--sampling.max_tokens", 64]
    arguments += ["--model.precision", "float64", "--steps", 2, "--algorithm.buffer", 1]
    one, two = run_ranks(arguments, 1, tmp_path / "one"), run_ranks(arguments, 2, tmp_path / "two")
    assert any(row.get("extra/updates") for row in read_lines(one / "metrics.jsonl"))
    assert measure_difference(one, two) < 1e-9
