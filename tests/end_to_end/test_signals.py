"""A signal stops a run wherever it is: what is whole is saved, the exit code is the signal's, and the run goes on as if
nothing had happened.

Each run is a process of its own, into which a fault sends the signal at a named point. By default one signal in each
kind of work; `pytest -m faults` has all signals at all points, and kills.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import OFFLINE, ONLINE, assert_same, forked

from qed.guards.signals import watch_signals
from qed.models.save import ModelFiles
from qed.runs import manifest

CODES = {"sigterm": 143, "sigint": 130, "sighup": 129}
GRPO = ("grpo", *ONLINE, "--learner.batch_size", 10, "--evaluation.every", 1, "--algorithm.entropy", 0.01)
SFT = ("sft", *OFFLINE, "--evaluation.every", 2, "--learner.tokens_per_microbatch", 100)
DPO = ("dpo", *OFFLINE, "--learner.tokens_per_microbatch", 200)
RESTARTED = ("expert_iteration", *ONLINE, "--algorithm.restart", "true", "--learner.batch_size", 5)
# Saved by the signal alone, after the reference has moved for the step that is left.
MOVING = ("grpo", *ONLINE, "--algorithm.kl", 0.1, "--algorithm.reference_every", 1, "--algorithm.reference_mix", 0.5)
MOVING += ("--run.save_every", 0)
# The last step that is whole when the signal comes, by the point and how often it was passed by then; None where
# nothing has begun. A rollout is passed at every token, an update at every micro-batch, a save at every stage of it.
POINTS = {
    "load:1": None,
    "load:3": None,
    "step:1": 0,
    "step:4": 3,
    "evaluate:1": 0,
    "evaluate:5": 2,
    "rollout:3": 0,
    "rollout:33": 2,
    "rollout:40": 3,
    "update:1": 0,  # scored
    "update:2": 0,  # the first of two updates
    "update:3": 1,  # the second: the step is made whole before the run stops
    "save:2": 2,
}
SMOKE = ("load:3", "evaluate:5", "rollout:33", "update:3", "save:2")
KILLED = -9
ANY = -1  # whichever step was the last


@pytest.fixture
def stopped(uncut: Callable[[list[Any]], Path], tmp_path: Path) -> Callable[..., None]:
    """Stops a run at a point, lets it go on, and compares it with the one that nothing happened to."""

    def stop(arguments: list[Any], point: str, kind: str, last: int | None) -> None:
        # First, in this process: its copies then have everything imported.
        expected, run, log = uncut(arguments), tmp_path / "run", tmp_path / "log"
        name, number = point.split(":")
        code, said = forked([*arguments, "--out", run], log, f"{name}:{kind}:{number}")
        assert code == CODES[kind], said
        assert "Traceback" not in said
        if last is None:
            assert "nothing to save" in said
            assert not run.exists(), "the same command begins again"
            return
        found = re.search(rf"Stopped after step (\d) by {kind.upper()}; its checkpoint is saved", said)
        assert found is not None, said
        assert max(manifest.list_checkpoints(run)) == int(found[1])
        assert last in (ANY, int(found[1]))
        code, said = forked([*arguments, "--out", run, "--resume"], log)
        assert code == 0, said
        assert_same(expected, run)

    return stop


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in SMOKE else pytest.mark.faults) for point in POINTS]
)
def test_a_signal_stops_a_run_wherever_it_is(
    command: Callable[..., list[Any]], stopped: Callable[..., None], point: str
) -> None:
    stopped(command(*GRPO), point, "sigterm", POINTS[point])


OTHERS = {
    SFT: ("update:1", "update:4", "evaluate:3", "save:4"),
    DPO: ("update:2", "update:9", "step:3", "save:4"),
    MOVING: ("rollout:27", "update:8"),
    RESTARTED: ("rollout:14", "update:2", "update:3", "step:2"),
}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("arguments", "point"),
    [
        pytest.param(arguments, point, id=f"{arguments[0]} {point}")
        for arguments, points in OTHERS.items()
        for point in points
    ],
)
def test_a_signal_stops_other_kinds_of_runs(
    command: Callable[..., list[Any]], stopped: Callable[..., None], arguments: tuple[object, ...], point: str
) -> None:
    stopped(command(*arguments), point, "sigterm", ANY)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["sigint", "sighup"])
@pytest.mark.parametrize("point", POINTS)
def test_other_signals_stop_a_run_as_well(
    command: Callable[..., list[Any]], stopped: Callable[..., None], point: str, kind: str
) -> None:
    stopped(command(*GRPO), point, kind, POINTS[point])


def test_a_signal_asks_for_a_checkpoint(
    command: Callable[..., list[Any]], uncut: Callable[[list[Any]], Path], tmp_path: Path
) -> None:
    """In the midst of the third step's sampling: its checkpoint is there, and the run is the same to its end."""
    arguments = command(*GRPO)
    expected, run = uncut(arguments), tmp_path / "run"
    code, said = forked([*arguments, "--out", run], tmp_path / "log", "rollout:sigusr1:33")
    assert code == 0, said
    assert list(manifest.list_checkpoints(run)) == [4, 3, 2]
    assert_same(expected, run)


def test_a_job_in_the_background_can_be_stopped_and_ended_too() -> None:
    """A shell starts it with SIGINT ignored, and under nohup SIGHUP, which then stays so."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        with watch_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.received is None
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # the same request, told twice
            assert stop.received == signal.SIGINT
            assert stop.received_at is not None
            stop.received_at -= 60
            child = os.fork()
            if not child:
                signal.raise_signal(signal.SIGINT)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGINT
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_that_another_rank_has_told_of_before_is_no_second_one() -> None:
    """Of a Ctrl-C to all ranks, one may hear from another while its main thread is in a long call of torch."""
    with watch_signals() as stop:
        stop.received = signal.SIGTERM  # as `RankMonitor` sets it
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.received == signal.SIGTERM


@pytest.mark.parametrize(("first", "second"), [("sigterm", signal.SIGTERM), ("sigint", signal.SIGTERM)])
def test_a_second_signal_ends_a_run_at_once(
    command: Callable[..., list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: signal.Signals,
) -> None:
    """It comes while the first one's checkpoint is being written, which is then absent and not half there."""
    monkeypatch.setattr("qed.guards.signals.REPEATED", 0.0)
    monkeypatch.setattr("qed.models.save.ModelFiles.write", lambda *_: os.kill(os.getpid(), second))
    code, said = forked([*command(*GRPO), "--out", tmp_path / "run"], tmp_path / "log", f"update:{first}:1")
    assert code == -second, said
    assert not manifest.list_checkpoints(tmp_path / "run")


def test_a_signal_that_is_told_several_times_is_one(
    command: Callable[..., list[Any]],
    uncut: Callable[[list[Any]], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by `timeout uv run qed`: `timeout` sends it to uv and to the group, and uv passes it on."""
    arguments, run, save = command(*GRPO), tmp_path / "run", ModelFiles.write
    expected = uncut(arguments)

    def repeat_and_save(self: ModelFiles, *given: Any) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        save(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ModelFiles, "write", repeat_and_save)
        code, said = forked([*arguments, "--out", run], tmp_path / "log", "update:sigterm:1")
    assert code == 143, said
    assert manifest.list_checkpoints(run)
    gone_on, then = forked([*arguments, "--out", run, "--resume"], tmp_path / "log")
    assert gone_on == 0, then
    assert_same(expected, run)


def test_a_signal_does_not_wait_for_somebody_elses_reward(
    command: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while answers are graded in other processes, which would take a minute each; none is left behind."""
    monkeypatch.undo()
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, time\n\n\ndef slow(prompts, completions, **columns):\n"
        f"    pathlib.Path({str(tmp_path)!r}, f'asked-{{os.getpid()}}').touch()\n    time.sleep(50)\n    return [0.0]\n"
    )
    more = ("--reward", tmp_path / "slow.py", "--data.reward_workers", 1, "--evaluation.every", 0)
    began = time.monotonic()
    code, said = forked([*command(*GRPO, *more), "--out", tmp_path / "run"], tmp_path / "log", "grade:sigterm:2")
    assert code == 143, said
    assert time.monotonic() - began < 45, "no answer was waited for"
    (asked,) = tmp_path.glob("asked-*")
    for _ in range(100):
        if _has_ended(int(asked.name.removeprefix("asked-"))):
            break
        time.sleep(0.1)
    else:
        pytest.fail("the process that graded goes on")


def _has_ended(process: int) -> bool:
    """Whether a process is gone, or waits only for somebody to read its exit code."""
    try:
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


SAVES = range(1, 12)
REFERENCE = 2  # more stages that a DPO run passes before, when it saves its reference model


@pytest.mark.faults
@pytest.mark.parametrize("arguments", [GRPO, SFT, DPO], ids=["grpo", "sft", "dpo"])
@pytest.mark.parametrize("stage", SAVES)
def test_a_run_killed_in_a_save_ends_as_if_it_were_not(
    command: Callable[..., list[Any]],
    uncut: Callable[[list[Any]], Path],
    tmp_path: Path,
    arguments: tuple[object, ...],
    stage: int,
) -> None:
    """At every stage of the second save, the retention that follows it included."""
    whole, run, log = uncut(command(*arguments)), tmp_path / "run", tmp_path / "log"
    again = [*command(*arguments, "--run.keep_last", 1), "--run.save_every", 1, "--out", run]
    before = SAVES[-1] - 2 + (REFERENCE if arguments is DPO else 0)
    code, said = forked(again, log, f"save:kill:{before + stage}")
    assert code == KILLED, said
    code, said = forked([*again, "--resume"], log)
    assert code == 0, said
    assert_same(whole, run)
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]
