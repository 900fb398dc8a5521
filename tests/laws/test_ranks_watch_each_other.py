"""A rank that dies, hangs or leaves is named by the others, a signal to one reaches all, and one tells of an error.

The store is a dictionary, and time is what the test counts: no thread runs but where a test says so.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qed.cli.main import main
from qed.errors import Interrupted, ModelError, RankLost
from qed.guards import ranks, watchdog
from qed.guards.ranks import RankMonitor, assign_failure, claim_failure, watch_ranks
from qed.guards.signals import Stop
from qed.loops.ranks import watch_other_ranks
from qed.runs.run import Run
from qed.training.parallel import Parallel


class FakeStore:
    """The store of several ranks in one process; `silent` makes it fail, as when its process is gone."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.sums: dict[str, int] = {}
        self.silent = False
        self.lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self._answer()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._answer()
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self._answer()
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        self._answer()
        with self.lock:
            self.sums[key] = self.sums.get(key, 0) + amount
            return self.sums[key]

    def _answer(self) -> None:
        if self.silent:
            raise RuntimeError("connection reset by peer")


class Ranks:
    """Monitors of several ranks; `pass_seconds` lets all but some of them exchange heartbeats, a second each time."""

    def __init__(self, world: int, seconds: float = 30.0) -> None:
        self.store = FakeStore()
        self.counts = [0] * world
        self.monitors = [RankMonitor(self.store, rank, world, Stop(), seconds) for rank in range(world)]

    def pass_seconds(self, seconds: int, without: tuple[int, ...] = ()) -> None:
        for _ in range(seconds):
            there = [monitor for monitor in self.monitors if monitor.rank not in without]
            for monitor in there:
                self.counts[monitor.rank] += 1
                monitor.write_beat(self.counts[monitor.rank])
            for monitor in there:
                monitor.exchange(self.counts[monitor.rank])
                monitor.check()

    def find(self, rank: int, patience: float = 30.0) -> list[tuple[int, str]]:
        return [(missing.rank, missing.why) for missing in self.monitors[rank].find_missing(patience)]


@pytest.fixture(autouse=True)
def _none_active() -> Iterator[None]:
    ranks._active.clear()
    yield
    ranks._active.clear()


def test_nobody_is_missing_while_all_are_there() -> None:
    group = Ranks(3)
    group.pass_seconds(100)
    assert not any(group.find(rank) for rank in range(3))
    assert not any(monitor.check() for monitor in group.monitors)


def test_a_rank_that_goes_before_they_watch_each_other_is_lost_too() -> None:
    """The exit code tells a launcher to start all again; once they watch, they find out who it is."""

    def fail(error: Exception) -> None:
        with ranks.in_collective("exchange"):
            raise error

    monitor = Ranks(2).monitors[0]
    for earlier in ([], [monitor]):  # an earlier run's is closed
        monitor._done.set()
        ranks._active[:] = earlier
        with pytest.raises(
            RankLost, match=r"has probably ended while the run was opened \(Connection closed by peer\)"
        ):
            fail(RuntimeError("Connection closed by peer\nframe #0"))
    for own in (ValueError("of mine"), RecursionError("too deep"), torch.OutOfMemoryError("CUDA out of memory")):
        with pytest.raises(type(own), match=str(own)):
            fail(own)
    monitor._done.clear()
    with pytest.raises(RuntimeError, match="Connection closed"):
        fail(RuntimeError("Connection closed by peer"))


def test_a_silent_rank_is_named_and_lost_in_time() -> None:
    group = Ranks(3)
    with watchdog.watch(watchdog.HangReport(ranks.Path("stacks"), "Resume with --resume", "run.watchdog"), 0) as dog:
        dog.enter("sample", 3)
        group.pass_seconds(2)
        group.pass_seconds(29, without=(1,))
        assert group.find(0) == []
        group.pass_seconds(1, without=(1,))
        for rank in (0, 2):
            (missing,) = group.monitors[rank].check()
            assert (missing.rank, missing.why) == (1, "no heartbeat for 30 s")
            assert (missing.step, missing.stage) == (3, "sample")
            assert missing.process
        error = group.monitors[0].find_lost()
    assert isinstance(error, RankLost)
    assert error.exit_code == 75
    assert "Rank 0 has lost another rank: rank 1 (process" in str(error)
    assert "no heartbeat for 30 s, last in stage 'sample' of step 3. Resume with --resume." in str(error)


def test_a_rank_that_loads_gets_longer() -> None:
    """No thread of Python may run while a large file is read."""
    group = Ranks(2)
    group.pass_seconds(2)
    group.pass_seconds(299, without=(1,))
    assert group.monitors[0].check() == []
    group.pass_seconds(1, without=(1,))
    assert [missing.rank for missing in group.monitors[0].check()] == [1]


def test_a_rank_that_was_never_heard_is_named_too() -> None:
    group = Ranks(2)
    group.pass_seconds(40, without=(1,))
    assert group.find(0) == [(1, "no heartbeat for 40 s, nor any before")]


def test_without_a_watchdog_nothing_is_ended() -> None:
    group = Ranks(2, seconds=0)
    group.pass_seconds(1)
    group.pass_seconds(1000, without=(1,))
    assert group.monitors[0].check() == []
    assert group.find(0) == [(1, "no heartbeat for 1000 s")]


def test_a_rank_that_is_behind_a_collective_is_named() -> None:
    group = Ranks(3)
    for monitor in group.monitors:
        monitor.enter("sum gradients")
        monitor.leave()
    for rank in (0, 2):
        group.monitors[rank].enter("gather rollouts")
    group.pass_seconds(1)
    assert group.find(0) == [(1, "has not entered collective 'gather rollouts' #2")]
    assert group.find(1) == []
    assert "Rank 0 waits in 'gather rollouts' for rank 1 (" in group.monitors[0].explain_wait()
    group.monitors[1].enter("gather rollouts")
    group.pass_seconds(1)
    assert group.find(0) == []
    assert group.monitors[0].explain_wait() == "All ranks have entered collective 'gather rollouts'."
    group.monitors[0].leave()
    assert group.monitors[0].explain_wait() == ""


def test_who_waits_for_a_rank_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watchdog sees progress as long as that rank is there, whose own watchdog would end it; not once it is not."""
    group, beats = Ranks(2), []
    monkeypatch.setattr(watchdog, "beat", lambda: beats.append(1))
    group.monitors[0].enter("gather rollouts")
    group.pass_seconds(5)
    assert len(beats) == 5
    group.pass_seconds(5, without=(1,))
    assert len(beats) == 5
    group.monitors[1].enter("gather rollouts")
    group.pass_seconds(5)
    assert len(beats) == 5, "and if all are in the collective, then it is the collective that hangs"


def test_a_rank_that_has_ended_is_missing_only_where_it_is_needed() -> None:
    group = Ranks(2)
    group.pass_seconds(1)
    group.monitors[1].end_with(Interrupted("stopped by a signal", 143))
    group.pass_seconds(1)
    group.pass_seconds(100, without=(1,))
    assert group.monitors[0].check() == [], "it may still write a checkpoint"
    group.monitors[0].enter("sum gradients")
    assert group.find(0) == [(1, "has ended")]
    assert [missing.rank for missing in group.monitors[0].check()] == [1]


def test_a_rank_that_has_failed_is_missing_at_once_and_lost_in_time() -> None:
    group = Ranks(2)
    group.pass_seconds(1)
    group.monitors[1].end_with(ModelError("no such model"))
    group.pass_seconds(1)
    assert group.find(0) == [(1, "has ended with ModelError: no such model")]
    group.pass_seconds(29, without=(1,))
    assert group.monitors[0].check() == []
    group.pass_seconds(1, without=(1,))
    assert [missing.rank for missing in group.monitors[0].check()] == [1]


def test_a_store_that_does_not_answer_is_rank_0() -> None:
    group = Ranks(3)
    group.pass_seconds(1)
    group.store.silent = True
    for _ in range(300):
        lost = group.monitors[1].check()
    assert [missing.rank for missing in lost] == [0]
    assert "the store of the ranks, which it holds, has not answered for 300 s" in str(lost[0])
    assert group.monitors[0].check() == [], "rank 0 itself does not end because of that"


def test_a_rank_that_was_silent_for_a_while_is_no_longer_missing() -> None:
    """As after its process was suspended alone."""
    group = Ranks(2)
    group.pass_seconds(20, without=(1,))
    assert group.find(0, patience=20)
    group.pass_seconds(2)
    assert group.find(0, patience=2) == []


def test_a_stop_signal_to_one_rank_reaches_all() -> None:
    group = Ranks(3)
    group.pass_seconds(1)
    group.monitors[1].stop.received = signal.SIGTERM
    group.pass_seconds(2)
    assert {monitor.stop.received for monitor in group.monitors} == {signal.SIGTERM}


def test_a_request_for_a_checkpoint_reaches_all_once() -> None:
    group = Ranks(3)
    for _ in range(2):
        group.monitors[1].stop.save = True
        group.pass_seconds(3)
        assert all(monitor.stop.save for monitor in group.monitors)
        for monitor in group.monitors:
            monitor.stop.save = False  # it is saved
        group.pass_seconds(3)
        assert not any(monitor.stop.save for monitor in group.monitors)


def test_one_rank_tells_of_an_error() -> None:
    group = Ranks(3)
    assert [monitor.claim_failure() for monitor in group.monitors] == [True, False, False]
    assert group.monitors[0].claim_failure(), "however often it is asked"
    group.store.silent = True
    assert RankMonitor(group.store, 1, 3, Stop(), 30).claim_failure(), "without the store, better twice than never"


def test_a_process_without_ranks_tells_of_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """Also if one of an earlier run in the same process was another rank's to tell."""
    assign_failure(prints=False)
    assert not claim_failure()
    with pytest.raises(SystemExit):
        main(["view", "--port", "70000", "."])
    assert "error: " in capsys.readouterr().err
    assert claim_failure()


def test_monitors_run_in_the_background_and_part_in_peace() -> None:
    """Rank 0, which may hold the store, stays until it has heard that the others have left."""
    store = FakeStore()
    monitors = [RankMonitor(store, rank, 2, Stop(), 30, tick=0.01) for rank in range(2)]

    def take_part(rank: int, seconds: float) -> None:
        with watch_ranks(monitors[rank]):
            while not all(monitor.beats[1 - monitor.rank].count > 3 for monitor in monitors):
                time.sleep(0.01)
            time.sleep(seconds)

    members = [threading.Thread(target=take_part, args=(rank, 0.2 * rank)) for rank in range(2)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert monitors[0].beats[1].left == ranks.GONE
    assert json.loads(store.values["beat/0"])["left"] == ranks.GONE
    assert not watchdog.explanations
    assert all(not thread.is_alive() for monitor in monitors for thread in monitor._threads)


def test_a_rank_that_ends_before_they_watch_each_other_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code says that the run may start again, although nobody can say which rank it was."""

    monkeypatch.setenv("RANK", "1")

    class Unreachable(Parallel):
        def open_store(self) -> Any:
            raise RuntimeError("Connection closed by peer")

    parallel = Unreachable(rank=1, world=2)
    with (
        pytest.raises(RankLost, match="Rank 1 cannot reach another rank"),
        watch_other_ranks(parallel, Stop(), 60.0, Run(tmp_path)),
    ):
        pass
