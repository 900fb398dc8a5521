"""`--cluster`: what refuses it, what it places, and what its command and its workers tell each other; without ray."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.cluster import placing
from qed.cluster.ray_control import (
    DONE,
    RETRY,
    Board,
    Control,
    Job,
    RankState,
    RemoteRank,
    Start,
    choose_arguments,
    describe_end,
    read_inode,
)
from qed.cluster.ray_session import Session
from qed.cluster.ray_train import name_keys, place_learners
from qed.cluster.watch import LOST, Patience, Watch
from qed.config.resolve import resolve_settings
from qed.errors import UsageError

Refused = Callable[..., str]
Run = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.usefixtures("elsewhere")
JOB = Job(("grpo", "--out", "run"), "run", "/", {}, 3)


@pytest.fixture
def error(run: Run) -> Refused:
    """Returns the message with which a command is refused."""

    def refused(*arguments: str) -> str:
        code, _, err = run(*arguments)
        assert code == 2
        return err

    return refused


# The command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["grpo", "--cluster", "auto"], "--out"),
        (["grpo", "--cluster", "auto", "--ranks", "2"], "cluster.learners"),
        (["grpo", "--cluster", "auto", "--sweep", "seed=0,1"], "sweep"),
        (["quickstart", "--cluster", "auto"], "one process"),
        (["grpo", "--cluster", "auto", "--cluster.learners", "-1"], "cluster.learners"),
        (["grpo", "--cluster", "auto", "--cluster.max_failures", "-1"], "cluster.max_failures"),
        (["grpo", "--cluster"], "needs a value"),
        (["grpo", "--cluster", "auto", "--requeue"], "--out"),
    ],
)
def test_what_does_not_run_on_a_cluster(error: Refused, arguments: list[str], said: str) -> None:
    assert said in error(*arguments)


def test_keys_of_reward_servers_are_found() -> None:
    options = "http.url=http://x:1/v1,http.model=m,http.key_variable=JUDGE_KEY"
    given = ["--rl.data.reward", "http", "--rl.data.reward_options", options]
    assert name_keys(resolve_settings("pipeline", given).settings) == {"JUDGE_KEY"}
    assert name_keys(resolve_settings("grpo", []).settings) == set()


def test_without_ray_the_message_says_what_to_install(error: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "qed[ray]" in error("grpo", "--cluster", "auto", "--out", "run")


def test_an_address_that_is_none(error: Refused) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'qed[ray]'")
    assert "HOST:PORT" in error("grpo", "--cluster", "here", "--out", "run")
    assert "ray job submit" in error("grpo", "--cluster", "ray://here:10001", "--out", "run")


# Placement


@pytest.mark.parametrize(
    ("given", "nodes", "cpus", "gpus", "count", "resources", "strategy"),
    [
        ((), 3, 24, 0, 3, {"CPU": 1.0}, "SPREAD"),
        ((), 2, 24, 16, 16, {"CPU": 1.0, "GPU": 1.0}, "PACK"),
        (("--cluster.learners", "5"), 2, 24, 16, 5, {"CPU": 1.0, "GPU": 1.0}, "PACK"),
        (("--model.device", "cpu"), 2, 24, 16, 2, {"CPU": 1.0}, "SPREAD"),
    ],
)
def test_learners_are_placed(
    given: tuple[str, ...], nodes: int, cpus: float, gpus: float, count: int, resources: dict[str, float], strategy: str
) -> None:
    placed = place_learners(resolve_settings("grpo", given).settings, Session("here:1", nodes, cpus, gpus))
    assert (placed.count, placed.resources, placed.strategy) == (count, resources, strategy)


@pytest.mark.parametrize(("cpus", "gpus", "unit"), [(8, 4, "GPU"), (3, 0, "CPU")])
def test_a_cluster_that_is_too_small(cpus: float, gpus: float, unit: str) -> None:
    settings = resolve_settings("grpo", ["--cluster.learners", "5"]).settings
    with pytest.raises(UsageError, match=f"5 {unit}s"):
        place_learners(settings, Session("here:1", 1, cpus, gpus))


@pytest.mark.parametrize(
    ("given", "nodes", "cpus", "gpus", "learners", "of_each"),
    [
        (("--cluster.engines", "2"), 1, 8, 0, 1, {"CPU": 1.0}),
        (("--cluster.engines", "2"), 2, 24, 16, 14, {"CPU": 1.0, "GPU": 1.0}),
        (("--cluster.engines", "2", "--cluster.gpus_per_engine", "4"), 2, 24, 16, 8, {"CPU": 1.0, "GPU": 4.0}),
        (("--cluster.engines", "2", "--cluster.gpus_per_engine", "0"), 2, 24, 16, 16, {"CPU": 1.0}),
    ],
)
def test_servers_take_their_share_before_the_learners(
    given: tuple[str, ...],
    nodes: int,
    cpus: float,
    gpus: float,
    learners: int,
    of_each: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[Path] = []
    monkeypatch.setattr(placing, "require_shared", checked.append)
    settings = resolve_settings("grpo", [*given, "--out", "runs/x"]).settings
    session = Session("here:1", nodes, cpus, gpus)
    assert place_learners(settings, session).count == learners
    assert placing.place_engines(settings, session) == placing.Engines(2, of_each, nodes > 1)
    assert checked == ([Path("runs").absolute()] if nodes > 1 else [])


def test_servers_and_learners_need_room_together() -> None:
    settings = resolve_settings("grpo", ["--cluster.engines", "2", "--cluster.learners", "3"]).settings
    with pytest.raises(UsageError, match="3 learners need 3 GPUs and 2 servers 2, but the cluster has 4"):
        place_learners(settings, Session("here:1", 1, 8, 4))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--sampling.sampler", "hf"), "not for hf"),
        (("--sampling.servers", "3"), "leave sampling.servers out"),
        (("--sampling.devices", "cuda:1"), "leave sampling.devices"),
        (("--sampling.weights_folder", "/dev/shm/w"), "in the memory of one node"),
    ],
)
def test_servers_that_a_cluster_cannot_have(given: tuple[str, ...], said: str) -> None:
    settings = resolve_settings("grpo", ["--cluster.engines", "2", "--out", "runs/x", *given]).settings
    with pytest.raises(UsageError, match=said):
        placing.place_engines(settings, Session("here:1", 2, 8, 0))


def test_one_node_may_use_its_memory_for_weights() -> None:
    given = ["--cluster.engines", "1", "--out", "runs/x", "--sampling.weights_folder", "/dev/shm/w"]
    engines = placing.place_engines(resolve_settings("grpo", given).settings, Session("here:1", 1, 8, 0))
    assert engines is not None
    assert not engines.shared


# Attempts


@pytest.mark.parametrize("flag", ["--resume", "--requeue", None])
def test_another_attempt_resumes_the_run(flag: str | None) -> None:
    arguments = ("grpo", *([flag] if flag else []), "--out", "run", "--fast")
    job = Job(arguments, "run", "/", {}, 3)
    assert choose_arguments(Start(job, 1, "", 0)) == arguments
    assert choose_arguments(Start(job, 2, "", 0)) == ["grpo", "--out", "run", "--fast", "--requeue"]


def test_another_attempt_does_not_resume_the_run_that_is_replaced(tmp_path: Path) -> None:
    job = Job(("grpo", "--overwrite", "--out", "run"), "run", str(tmp_path), {}, 3)
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").touch()
    first = Start(job, 2, "", read_inode(job))
    assert choose_arguments(first) == job.arguments, "it is still there"
    run.rename(tmp_path / "aside")
    run.mkdir()
    assert choose_arguments(first) == job.arguments, "the new one is not prepared"
    (run / "metrics.jsonl").touch()
    assert choose_arguments(first) == ["grpo", "--out", "run", "--requeue"]


class Handle:
    """Stands in for the handle of an actor."""

    def __init__(self, control: Control) -> None:
        self.control = control

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.control, name)

        class Caller:
            remote = staticmethod(method)

        return Caller


def watch(control: Control, signals: list[int]) -> tuple[Board, list[RemoteRank], Watch]:
    board = Board(control.report())
    ranks = [RemoteRank(number, control.attempt, board, Handle(control)) for number in range(control.world)]
    return board, ranks, Watch(ranks, signals, Patience(5.0, 0.2, 0.2))


def test_a_signal_reaches_every_rank_and_the_end_of_all_is_told() -> None:
    control = Control(JOB, 2)
    assert control.begin() == 1
    board, _, watched = watch(control, [signal.SIGTERM])
    watched._pass_signals_on()
    for rank in range(2):
        orders = control.exchange(1, rank, RankState("process 1"), b"out", b"")
        assert (orders.signals, orders.verdict) == (((signal.SIGTERM, False),), "")
        assert control.exchange(1, rank, RankState("process 1", 143)).signals == ()
    board.report = control.report()
    assert board.report.out == b"outout"
    assert control.report().out == b""
    assert watched.wait() == 143
    control.settle(1, DONE)
    assert control.exchange(1, 0, RankState("process 1", 143)).verdict == DONE


def test_the_ranks_of_a_lost_worker_are_lost(capfd: pytest.CaptureFixture[str]) -> None:
    control = Control(JOB, 2)
    control.begin()
    control.exchange(1, 0, RankState("process 7 on a"))
    control.exchange(1, 1, RankState("process 8 on b", -9))
    board, ranks, watched = watch(control, [])
    assert [rank.code for rank in ranks] == [None, -9]
    control.begin()
    board.report = control.report()
    assert watched.wait() == LOST
    assert "rank 1 (process 8 on b) was killed by SIGKILL" in capfd.readouterr().err
    assert describe_end(ranks) == "rank 1 (process 8 on b) was killed by signal 9"
    control.settle(1, RETRY, "why")
    assert control.join(0, "process 9").reason == "why"
    assert control.exchange(1, 0, RankState("process 7 on a")).verdict == RETRY, "a worker of the first attempt ends"
    assert control.ranks[0].place == "process 9"
    control.send(1, 0, signal.SIGKILL, True)
    assert control.exchange(2, 0, RankState("process 9")).signals == ()


def test_ranks_are_lost_when_ray_train_has_ended() -> None:
    control = Control(JOB, 1)
    control.begin()
    board, ranks, _ = watch(control, [])
    assert ranks[0].code is None
    board.over = True
    assert ranks[0].code == LOST


def test_a_worker_that_is_silent_is_lost() -> None:
    control = Control(JOB, 2)
    control.begin()
    control.seen[1] -= 100
    board, ranks, _ = watch(control, [])
    assert [rank.code for rank in ranks] == [None, LOST]
    control.exchange(1, 1, RankState("process 2"))
    board.report = control.report()
    assert [rank.code for rank in ranks] == [None, None]
