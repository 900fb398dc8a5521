"""Two ranks under faults: all end, the one to blame is named, nobody is left, and the run goes on as if nothing was."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cutting import ONLINE, assert_same
from ranks import Ranks, run_ranks, wait_for_step

pytestmark = pytest.mark.faults
MINUTE = 60.0
KILLS = 10
# When the fault happens: at which passing of a point. Preparing a run saves too, and may take ten times as long.
NUMBERS = {"rollout": 3, "update": 3, "save": 12, "step": 2}
OTHER_NUMBERS = NUMBERS | {"save": 7}  # of rank 1, which writes fewer files
Start = Callable[..., Ranks]


@pytest.fixture
def arguments(command: Callable[..., list[object]]) -> list[object]:
    """A run with several updates of a step, and a checkpoint of every step."""
    more = ["--learner.passes", 2, "--learner.batch_size", 8, "--algorithm.kl", 0.1, "--algorithm.entropy", 0.01]
    return [*command("grpo", *ONLINE, *more, "--evaluation.every", 2, "--run.watchdog", 8), "--run.save_every", 1]


@pytest.fixture
def start(arguments: list[object], tmp_path: Path) -> Iterator[Start]:
    """Start the run at two ranks; whoever is left at the end is killed."""
    started: list[Ranks] = []

    def begin(out: Path, *more: object, **options: Any) -> Ranks:
        ranks = Ranks([*arguments, "--out", out, "--requeue", *more], 2, tmp_path / f"said-{len(started)}", **options)
        started.append(ranks)
        return ranks

    yield begin
    for ranks in started:
        ranks.kill()


@pytest.fixture
def whole(arguments: list[object], tmp_path: Path) -> Path:
    """The run that nothing happens to."""
    return run_ranks(arguments, 2, tmp_path / "whole")


def finish(start: Start, out: Path, whole: Path) -> None:
    """Go on with what is left, and compare the end with the undisturbed run's."""
    ended = start(out).wait()
    assert ended.codes == [0, 0], ended
    assert_same(whole, out)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_at_any_moment_costs_no_more_than_time(
    start: Start, whole: Path, tmp_path: Path, rank: int
) -> None:
    source = random.Random(rank)
    began = time.monotonic()
    start(tmp_path / "timed").wait()
    seconds = time.monotonic() - began
    for number in range(KILLS):
        out = tmp_path / f"killed-{number}"
        ranks = start(out)
        time.sleep(source.uniform(0, seconds))
        if not ranks.poll():
            ranks.send(rank, signal.SIGKILL)
        ended = ranks.wait(MINUTE)
        assert ended.codes[rank] in (-signal.SIGKILL, 0), ended
        assert ended.codes[1 - rank] in (75, 0), ended
        finish(start, out, whole)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_suspended_is_named(start: Start, whole: Path, tmp_path: Path, rank: int) -> None:
    out = tmp_path / "hung"
    ranks = start(out)
    wait_for_step(out, 2)
    ranks.send(rank, signal.SIGSTOP)
    end = time.monotonic() + MINUTE
    while (1 - rank) not in ranks.codes and time.monotonic() < end:
        ranks.poll()
        time.sleep(0.05)
    ranks.kill()
    ended = ranks.wait()
    assert ended.codes[1 - rank] == 75, ended
    assert f"rank {rank} (process" in ended.said[1 - rank], ended
    finish(start, out, whole)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("point", ["rollout", "update", "save"])
def test_a_rank_that_hangs_ends_all(start: Start, whole: Path, tmp_path: Path, rank: int, point: str) -> None:
    out = tmp_path / "hung"
    ended = start(out, faults_of={rank: f"{point}:sleep:{(OTHER_NUMBERS if rank else NUMBERS)[point]}"}).wait(MINUTE)
    assert ended.codes[rank] == 75, ended
    assert ended.codes[1 - rank] == 75, ended
    assert "No progress for 8 s" in ended.said[rank], ended
    finish(start, out, whole)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("point", ["rollout", "update", "step"])
def test_an_error_of_one_rank_ends_all(start: Start, whole: Path, tmp_path: Path, rank: int, point: str) -> None:
    out = tmp_path / "failed"
    ended = start(out, faults_of={rank: f"{point}:error:{(OTHER_NUMBERS if rank else NUMBERS)[point]}"}).wait(MINUTE)
    assert 0 not in ended.codes, ended
    assert any(f"QED_FAULT={point}:error" in said for said in ended.said), ended
    finish(start, out, whole)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_that_is_not_finite_on_one_rank_ends_all(start: Start, whole: Path, tmp_path: Path, rank: int) -> None:
    out = tmp_path / "diverged"
    ended = start(out, faults_of={rank: "loss:nan:3"}).wait(MINUTE)
    assert ended.codes == [4, 4], ended
    finish(start, out, whole)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("shard", ["none", "full"])
def test_a_full_disk_of_one_rank_ends_all(start: Start, tmp_path: Path, rank: int, shard: str) -> None:
    out = tmp_path / "full"
    ended = start(
        out, "--parallel.shard", shard, faults_of={rank: f"save:enospc:{(OTHER_NUMBERS if rank else NUMBERS)['save']}"}
    ).wait(MINUTE)
    assert ended.codes[0] == ended.codes[1] != 0, ended
    assert any("No space left on device" in said for said in ended.said), ended
    assert start(out, "--parallel.shard", shard).wait().codes == [0, 0]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_one_rank_stops_all(
    start: Start, whole: Path, tmp_path: Path, rank: int, number: int, code: int
) -> None:
    out = tmp_path / "stopped"
    ranks = start(out)
    wait_for_step(out, 1)
    ranks.send(rank, number)
    ended = ranks.wait(MINUTE)
    assert ended.codes == [code, code], ended
    finish(start, out, whole)


def test_a_second_signal_ends_all_at_once(start: Start, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "stopped"
    ranks = start(out, faults_of={1: "update:sleep:2"})
    wait_for_step(out, 0)
    for _ in range(2):
        time.sleep(1)
        for rank in (0, 1):
            ranks.send(rank, signal.SIGINT)
    ended = ranks.wait(20)
    # Who waits in an operation of all ranks sees no signal, but that another rank has left.
    assert ended.codes[1] == 130, ended
    assert ended.codes[0] in (75, 130), ended
    finish(start, out, whole)
