"""With rollout.max_staleness k, a step is sampled by weights that are k updates old: exactly, repeatably, and a run
that was cut goes on as the one that was not. The sampler is one with weights of its own, see `apart`."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apart
import pytest
import yaml
from cutting import ONLINE, SHARED, SMALL, assert_same, by_chance, cut, forked, write_data

from qed.errors import QedError
from qed.guards.watchdog import list_children
from qed.runs import manifest
from qed.runs.run import read_lines
from qed.types import Groups

STEPS = 6
LEARNED = ("train/", "optim/", "correction/", "reward/", "length/", "policy/", "clip/")
STOPPED = ("rollout:1", "rollout:35", "wait:1", "update:1", "update:3", "evaluate:1", "save:2")
SAMPLER = ("--sampling.sampler", Path(apart.__file__))
EVEN = """from qed import Grade

def reward(rollout):
    even = sum(rollout.output) % 2 == 0
    return Grade(float(even), even, True, None)
"""
GRPO = ("grpo", *ONLINE, *SAMPLER)
DAPO = ("dapo", *ONLINE, *SAMPLER, "--sampling.group_size", 2, "--algorithm.max_rounds", 3)


def command(data: Path, staleness: int, *chosen: object) -> list[object]:
    """A run's command line, less its folder."""
    problems, _ = write_data(data)
    ahead = ("--steps", STEPS, "--rollout.max_staleness", staleness)
    return [chosen[0], "--tasks", problems, *SMALL, *chosen[1:], *ahead]


@pytest.fixture
def trained(qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a run and returns its folder."""
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)

    def train(name: str, staleness: int, *chosen: object) -> Path:
        made = qed(*command(tmp_path, staleness, *chosen), "--out", tmp_path / name)
        assert made.code == 0, made.err
        assert "sampling ahead" not in [thread.name for thread in threading.enumerate()]
        return tmp_path / name

    return train


def read_versions(run: Path) -> list[set[int]]:
    """The versions that sampled the answers of each step."""
    return [{row["version"] for row in read_lines(path)} for path in sorted(run.glob("rollouts/*.jsonl.zst"))]


@pytest.mark.parametrize("staleness", [pytest.param(1, marks=pytest.mark.faults), 2])
def test_a_step_is_sampled_by_the_weights_of_its_staleness(trained: Callable[..., Path], staleness: int) -> None:
    # Evaluations between the steps take the sampler with other weights, and give it back.
    run = trained("run", staleness, *GRPO, "--evaluation.every", 2)
    assert read_versions(run) == [{max(0, step - staleness)} for step in range(STEPS)]
    rows = [row for row in read_lines(run / "metrics.jsonl") if "rollout/staleness_max" in row]
    assert [row["rollout/staleness_max"] for row in rows] == [min(staleness, step) for step in range(STEPS)]
    assert all("time/wait" in row and "time/sample" not in row for row in rows)
    again = trained("again", staleness, *GRPO, "--evaluation.every", 2)
    assert_same(run, again)


def test_no_staleness_is_the_run_in_turn(trained: Callable[..., Path]) -> None:
    apart, shared = trained("apart", 0, *GRPO), trained("shared", 0, "grpo", *ONLINE)
    assert read_steps(apart) == read_steps(shared)
    assert read_lines(apart / "rollouts/step_000006.jsonl.zst") == read_lines(shared / "rollouts/step_000006.jsonl.zst")
    assert all("time/wait" not in row for row in read_lines(shared / "metrics.jsonl"))


def resume_everywhere(trained: Callable[..., Path], cuts: Sequence[int], staleness: int, *chosen: object) -> None:
    """Cut a run behind some of its steps, and compare what goes on from there."""
    whole = trained("whole", staleness, *chosen)
    for at in cuts:
        part = cut(whole, at, whole.with_name(f"cut-{at}"))
        assert_same(whole, trained(part.name, staleness, *chosen, "--resume"))
        shutil.rmtree(part)


@pytest.mark.parametrize(
    ("staleness", "chosen"),
    [
        (2, (*DAPO, "--sampling.curriculum", "thompson")),
        *(pytest.param(k, GRPO, marks=pytest.mark.faults) for k in (1, 2)),
    ],
)
def test_a_cut_run_goes_on_with_what_was_sampled_ahead(
    trained: Callable[..., Path], tmp_path: Path, staleness: int, chosen: tuple[object, ...]
) -> None:
    resume_everywhere(trained, [1, 3], staleness, *chosen)
    run, waiting = tmp_path / "whole", 0
    counts = [row for row in read_lines(run / "metrics.jsonl") if "groups/kept" in row]
    size = yaml.safe_load((run / "settings.yaml").read_text())["sampling"]["group_size"]
    for path, row in zip(sorted(run.glob("rollouts/*.jsonl.zst")), counts, strict=True):
        trained_here = [each["advantage"] is not None for each in read_lines(path)]
        # Groups that waited since an earlier step are in the file of that one.
        kept, fresh, sampled = int(row["groups/kept"]), sum(trained_here) // size, len(trained_here) // size
        assert fresh <= kept <= fresh + waiting
        waiting += sampled - kept - int(row["groups/dropped"])
    assert any(row["groups/dropped"] for row in counts) == (chosen[: len(DAPO)] == DAPO)


@pytest.mark.parametrize("failing", [4, 6])
def test_an_error_keeps_what_was_sampled_until_then(
    trained: Callable[..., Path], qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The reward fails while step 4 or 6 is sampled ahead; newer weights sample what is missing."""
    calls = itertools.count(1)

    def fail(groups: Groups, grader: Any) -> None:
        if next(calls) == failing:
            raise QedError("the server is gone")
        by_chance(groups, grader)

    with monkeypatch.context() as patch:
        patch.setattr("qed.rollout.collector.grade", fail)
        failed = qed(*command(tmp_path, 2, *GRPO), "--out", tmp_path / "part", "--run.save_every", 0)
    assert failed.code == 1
    (step,) = manifest.list_checkpoints(tmp_path / "part")
    assert f"step {step}, the last complete one, is saved" in failed.out + failed.err
    assert failing - 3 <= step < failing
    versions = read_versions(trained("part", 2, *GRPO, "--run.save_every", 0, "--resume"))
    assert versions[: failing - 1] == [{max(0, n - 2)} for n in range(failing - 1)]
    assert versions[failing - 1 :] == [{max(step, n - 2)} for n in range(failing - 1, STEPS)]


@pytest.mark.faults
@pytest.mark.parametrize("staleness", [1, 2, 4])
@pytest.mark.parametrize("chosen", [GRPO, DAPO], ids=["grpo", "dapo"])
def test_a_run_goes_on_behind_every_step(
    trained: Callable[..., Path], staleness: int, chosen: tuple[object, ...]
) -> None:
    resume_everywhere(trained, range(1, STEPS + 1), staleness, *chosen, "--sampling.top_p", 0.95)


@pytest.mark.faults
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (2, 0)])
def test_another_staleness_first_uses_what_was_sampled(
    trained: Callable[..., Path], tmp_path: Path, before: int, after: int
) -> None:
    part = cut(trained("whole", before, *GRPO), 3, tmp_path / "part")
    changed = ("--resume", "--allow-change", "rollout.max_staleness")
    versions = read_versions(trained(part.name, after, *GRPO, *changed))
    sampled = [max(0, step - before) for step in range(3 + before)]
    assert versions == [{v} for v in (sampled + [max(3, step - after) for step in range(len(sampled), STEPS)])[:STEPS]]


@pytest.mark.parametrize("point", ["rollout:41", *(pytest.param(p, marks=pytest.mark.faults) for p in STOPPED)])
def test_a_signal_saves_what_was_sampled_ahead(trained: Callable[..., Path], tmp_path: Path, point: str) -> None:
    whole, log = trained("whole", 2, *GRPO), tmp_path / "log"
    part, name, number = tmp_path / "part", *point.split(":")
    arguments = [*command(tmp_path, 2, *GRPO), "--out", part, "--run.save_every", 0]
    code, said = forked(arguments, log, f"{name}:sigterm:{number}")
    assert code == 128 + signal.SIGTERM, said
    assert "Traceback" not in said
    assert_same(whole, trained(part.name, 2, *GRPO, "--resume"))


@pytest.mark.faults
def test_a_kill_loses_only_what_was_not_saved(trained: Callable[..., Path], tmp_path: Path) -> None:
    whole, log = trained("whole", 2, *GRPO), tmp_path / "log"
    code, said = forked([*command(tmp_path, 2, *GRPO), "--out", tmp_path / "part"], log, "rollout:kill:60")
    assert code == -signal.SIGKILL, said
    assert_same(whole, trained("part", 2, *GRPO, "--requeue"))


def test_an_error_of_the_thread_ends_the_run(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded: list[str] = []

    def fail(groups: Groups, grader: Any) -> None:
        graded.append(threading.current_thread().name)
        if len(graded) == 3:
            raise QedError("The reward has lost its mind.")
        by_chance(groups, grader)

    monkeypatch.setattr("qed.rollout.collector.grade", fail)
    outcome = qed(*command(tmp_path, 1, *GRPO), "--out", tmp_path / "run")
    assert outcome.code == 1
    assert "lost its mind" in outcome.err
    assert set(graded) == {"sampling ahead"}
    assert "sampling ahead" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (("exgrpo", *ONLINE, *SAMPLER), "replays"),
        (("grpo", *ONLINE, "--sampling.sampler", "hf"), "hf"),
        (("grpo", *ONLINE, *SAMPLER, "--sampling.colocate", "true"), "colocate"),
    ],
)
def test_what_needs_the_learner_is_refused(
    qed: Callable[..., Any], tmp_path: Path, chosen: tuple[object, ...], said: str
) -> None:
    outcome = qed(*command(tmp_path, 1, *chosen), "--out", tmp_path / "run")
    assert outcome.code == 2
    assert said in outcome.err
    assert not (tmp_path / "run").exists()


def test_the_phase_after_sft_samples_ahead(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)
    problems, _ = write_data(tmp_path)
    arguments = ["pipeline", "--tasks", problems, *SHARED, *ONLINE, *SAMPLER, "--rollout.max_staleness", 2]
    arguments += ["--sft.learner.steps", 2, "--rl.learner.steps", 4]
    outcome = qed(*arguments, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert read_versions(tmp_path / "run") == [{2}, {2}, {2}, {3}]


@pytest.mark.faults
@pytest.mark.parametrize("point", ["rollout:30", "evaluate:3", "update:4"])
def test_a_reward_of_the_users_own_grades_in_the_thread(qed: Callable[..., Any], tmp_path: Path, point: str) -> None:
    reward = tmp_path / "even.py"
    reward.write_text(EVEN, encoding="utf-8")
    own = (*GRPO, "--reward", reward, "--evaluation.every", 1)
    arguments = command(tmp_path, 2, *own)
    made = qed(*arguments, "--out", tmp_path / "whole")
    assert made.code == 0, made.err
    name, number = point.split(":")
    code, said = forked([*arguments, "--out", tmp_path / "part"], tmp_path / "log", f"{name}:sigterm:{number}")
    assert code == 128 + signal.SIGTERM, said
    code, said = forked([*arguments, "--out", tmp_path / "part", "--resume"], tmp_path / "log")
    assert code == 0, said
    assert_same(tmp_path / "whole", tmp_path / "part")


@pytest.mark.faults
def test_a_server_of_its_own_samples_the_same(trained: Callable[..., Path], tmp_path: Path) -> None:
    """The native server, which a run starts, gives the run of a sampler in the process; also where it is cut."""
    native = ("grpo", *ONLINE)
    whole = trained("whole", 2, *native)
    apart = trained("apart", 2, *GRPO)
    for one, other in zip(read_steps(whole), read_steps(apart), strict=True):
        assert one == other
    assert_same(whole, trained(cut(whole, 3, tmp_path / "part").name, 2, *native, "--resume"))
    arguments = [*command(tmp_path, 2, *native), "--out", tmp_path / "stopped"]
    code, said = forked(arguments, tmp_path / "log", "update:sigterm:3")
    assert code == 128 + signal.SIGTERM, said
    assert_same(whole, trained("stopped", 2, *native, "--resume"))


@pytest.mark.faults
@pytest.mark.parametrize("more", [(), ("--model.lora_rank", 4)], ids=["full", "lora"])
def test_a_killed_server_changes_nothing(
    trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, more: tuple[object, ...]
) -> None:
    whole = trained("whole", 2, "grpo", *ONLINE, *more)
    graded, others = list[None](), list_servers()  # a server that other tests share may be there

    def kill(groups: Groups, grader: Any) -> None:
        by_chance(groups, grader)
        graded.append(None)
        if len(graded) in (2, 5):
            (server,) = list_servers() - others
            os.kill(server, signal.SIGKILL)

    monkeypatch.setattr("qed.rollout.collector.grade", kill)
    again = trained("again", 2, "grpo", *ONLINE, *more)
    assert [row["event"] for row in read_lines(again / "events.jsonl")].count("server_restarted") == 2
    assert read_steps(whole) == read_steps(again)
    assert read_versions(whole) == read_versions(again)


def list_servers() -> set[int]:
    """The processes of servers that this one has started."""
    commands = {each["process"]: each["command"].replace("-I ", "") for each in list_children()}
    return {process for process, command in commands.items() if "-m qed serve" in command}


def read_steps(run: Path) -> list[dict[str, Any]]:
    """The metrics of the steps that do not depend on where answers are sampled."""
    rows = read_lines(run / "metrics.jsonl")
    return [{name: row[name] for name in row if name.startswith(LEARNED)} for row in rows if "train/loss" in row]
