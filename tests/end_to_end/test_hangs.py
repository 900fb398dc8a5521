"""A run in which nothing moves any more ends with exit code 75 and its stacks; nothing that it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qed.guards.watchdog import Breach, Watchdog, beat, list_children, write_stacks
from qed.runs.run import read_lines

SMALL = ["--steps", 400, "--sampling.problems_per_step", 2, "--sampling.group_size", 2, "--sampling.max_tokens", 4]
SMALL += ["--evaluation.problems", 2, "--evaluation.samples", 0, "--algorithm.entropy", 0.01]
BOOT = "import time\n{fault}\nfrom qed.cli.main import main\nmain()"
# Each puts a sleep where a run could hang, after a few steps.
FAULTS = {
    "sample": "import qed.sampling.native.sampler as n\nn.NativeSampler.generate = lambda *a, **k: time.sleep(999)",
    "update": "import qed.training.learner as n\nn.Learner.accumulate = lambda *a, **k: time.sleep(999)",
    "evaluate": "import qed.loops.evaluator as n\nn.evaluate = lambda *a, **k: time.sleep(999)",
    "save": "import qed.loops.checkpointer as n\nn.save_checkpoint = lambda *a, **k: time.sleep(999)",
}


def start(run: Path, *more: object, fault: str = "") -> subprocess.Popen[str]:
    return begin("grpo", "--out", run, *SMALL, *more, fault=fault)


def begin(*arguments: object, fault: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BOOT.format(fault=fault), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(found: Callable[[], bool], seconds: float = 60) -> None:
    for _ in range(int(seconds * 20)):
        if found():
            return
        time.sleep(0.05)
    raise AssertionError(f"it did not happen within {seconds:g} s")


def lives(number: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage", ["update", *(pytest.param(one, marks=pytest.mark.faults) for one in FAULTS if one != "update")]
)
def test_a_stage_that_hangs(tmp_path: Path, stage: str) -> None:
    """The stacks name where every thread stood, the event names the stage, and what was saved is whole."""
    run = tmp_path / "run"
    # What would save and evaluate before the first step must not, where the fault is meant to be met later.
    more = ["--run.watchdog", 1, "--run.save_every", 1, "--evaluation.every", 0, "--run.preflight", "false"]
    fault = FAULTS[stage] + ("\nimport qed.loops.evaluator as p\np.evaluate = lambda *a, **k: {}" * (stage == "sample"))
    going = start(run, *more, fault=fault)
    _, err = going.communicate(timeout=100)
    assert going.returncode == 75, err
    assert "No progress for 1 s" in err
    assert f"in stage '{stage}'" in err
    assert "--resume" in err
    stacks = (run / "logs" / "attempt_1" / "hang.txt").read_text()
    assert "most recent call first" in stacks
    assert '"<string>", line' in stacks  # the line of the fault
    assert "watchdog.py" in stacks
    (event,) = [row for row in read_lines(run / "events.jsonl") if row["event"] == "hung"]
    assert event["stage"] == stage


@pytest.mark.faults
def test_an_evaluation_that_hangs(tmp_path: Path) -> None:
    asked = ("--model", "new:tiny", "--tasks", "arithmetic", "--limit", 2, "--max-tokens", 4, "--watchdog", 1)
    going = begin("evaluate", *asked, "--preflight", "false", "--out", tmp_path / "kept", fault=FAULTS["sample"])
    _, err = going.communicate(timeout=100)
    assert going.returncode == 75, err
    assert "in stage 'evaluate'" in err
    assert f"ontinue with the same command and --out {tmp_path / 'kept'}; if" in err
    assert "increase --watchdog" in err
    assert "most recent call first" in (tmp_path / "kept" / "hang.txt").read_text()


@pytest.mark.faults
def test_a_disk_that_hangs_keeps_nobody_from_ending(tmp_path: Path) -> None:
    """Not even the stacks and the event can be written: the process ends all the same, and says so on its stderr."""
    fault = "import qed.runs.run as n\nn.write_bytes = lambda *a, **k: time.sleep(999)"
    going = start(tmp_path / "run", "--run.watchdog", 0.2, fault=fault)
    _, err = going.communicate(timeout=100)
    assert going.returncode == 75, err
    assert "No progress for" in err


REWARD = """
import subprocess, sys, time, os
from qed.types import Grade
{loading}
def reward(rollout):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"])
    open({marker!r}, "w").write(str(os.getpid()))
    time.sleep(999)
"""


@pytest.fixture
def hanging(tmp_path: Path) -> tuple[Path, Path]:
    """A reward of the user's own that starts a process and then hangs, and the file that it leaves."""
    reward, marker = tmp_path / "mine.py", tmp_path / "asked"
    reward.write_text(REWARD.format(loading="", marker=str(marker)))
    return reward, marker


@pytest.mark.faults
def test_a_reward_that_hangs_and_its_children(tmp_path: Path, hanging: tuple[Path, Path]) -> None:
    reward, marker = hanging
    going = start(tmp_path / "run", "--run.watchdog", 2, "--reward", reward)
    wait_for(marker.exists)
    started = descendants(going.pid)
    _, err = going.communicate(timeout=100)
    assert going.returncode == 75, err
    wait_for(lambda: not any(map(lives, started)), 10)
    stacks = (tmp_path / "run" / "logs" / "attempt_1" / "hang.txt").read_text()
    listed = [json.loads(line) for line in stacks.splitlines() if line.startswith('{"process"')]
    assert {child["process"] for child in listed} >= started
    assert any("time.sleep(999)" in child["command"] for child in listed)


def descendants(number: int) -> set[int]:
    """A process's children and theirs."""
    told = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in told.splitlines())  # type: ignore[arg-type]
    found = {number}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {number}


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux alone")
def test_a_killed_measurement_leaves_no_orphan() -> None:
    going = begin("doctor", "--fit", "new:small", "--lengths", "200,200", fault="")
    wait_for(lambda: bool(descendants(going.pid)))
    started = descendants(going.pid)
    time.sleep(2)  # it has been told by then whose child it is
    for number in started:
        os.kill(number, signal.SIGSTOP)  # so that it does not find out by writing to nobody
    going.kill()
    going.wait()
    wait_for(lambda: not any(map(lives, started)), 10)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux alone")
def test_a_killed_run_leaves_no_orphan_while_it_grades(tmp_path: Path, hanging: tuple[Path, Path]) -> None:
    reward, marker = hanging
    going = start(tmp_path / "run", "--reward", reward)
    wait_for(marker.exists)
    wait_for(lambda: len(descendants(going.pid)) >= 3)  # the clean process, its child, and what the reward has started
    started = descendants(going.pid)
    os.kill(going.pid, signal.SIGKILL)
    going.communicate(timeout=20)
    wait_for(lambda: not any(map(lives, started)), 3)


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux alone")
def test_a_killed_run_leaves_no_orphan_while_it_loads(tmp_path: Path) -> None:
    """The clean process still imports, and reads no socket yet."""
    reward, marker = tmp_path / "mine.py", tmp_path / "asked"
    loading = f"open({str(marker)!r}, 'w').close()\ntime.sleep(999)"
    reward.write_text(REWARD.format(loading=loading, marker="never"))
    going = start(tmp_path / "run", "--reward", reward)
    wait_for(marker.exists)
    started = descendants(going.pid)
    assert started
    os.kill(going.pid, signal.SIGKILL)
    going.communicate(timeout=20)
    wait_for(lambda: not any(map(lives, started)), 3)


# The watchdog by itself


def watched(dog: Watchdog, seconds: float, moving: Callable[[], object] | None = None) -> list[Breach]:
    """What a watchdog has to say within so many seconds."""
    found: list[Breach] = []
    thread = threading.Thread(target=dog.watch, args=(found.append,))
    thread.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until and thread.is_alive():
        time.sleep(0.01)
        if moving:
            moving()
    dog.end()
    thread.join()
    return found


def test_progress_keeps_it_quiet_and_silence_does_not(tmp_path: Path) -> None:
    dog = Watchdog(tmp_path / "heartbeat.json", 0.4)
    dog.enter("sample", 3)
    assert watched(dog, 1.5, beat) == []
    told = json.loads((tmp_path / "heartbeat.json").read_text())
    assert (told["process"], told["step"], told["stage"]) == (os.getpid(), 3, "sample")
    dog = Watchdog(tmp_path / "heartbeat.json", 0.4)
    dog.enter("train", 7)
    (breach,) = watched(dog, 30)
    assert (breach.step, breach.stage) == (7, "train")


def test_a_run_within_another_is_watched_and_then_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the control of the quickstart: what two watchdogs count is no progress of either."""
    outer, inner = Watchdog(None, 0.4), Watchdog(None, 0.4)
    monkeypatch.setattr("qed.guards.watchdog._watching", [outer, inner])
    for dog in (outer, inner):
        dog.enter("train", 1)
    found: list[Breach] = []
    thread = threading.Thread(target=outer.watch, args=(found.append,))
    thread.start()
    (breach,) = watched(inner, 10)
    assert breach.stage == "train"
    assert not found
    monkeypatch.setattr("qed.guards.watchdog._watching", [outer])
    thread.join(10)
    assert len(found) == 1


def test_a_run_that_ends_at_once_has_a_heartbeat(tmp_path: Path) -> None:
    """So what a run's folder holds does not depend on how fast the machine is."""
    dog = Watchdog(tmp_path / "heartbeat.json", 100.0)
    dog.end()
    dog.watch(lambda breach: pytest.fail(str(breach)))
    assert json.loads((tmp_path / "heartbeat.json").read_text())["stage"] == "load"


def test_a_stage_that_is_always_long_gets_longer_and_loading_longest(tmp_path: Path) -> None:
    dog = Watchdog(tmp_path / "heartbeat.json", 5)
    assert dog.deadline() == 50
    dog.enter("train", 1)
    assert dog.deadline() == 5
    dog.spent["train"].extend([3.0, 4.0, 100.0])
    assert dog.deadline() == 40


def test_a_pause_of_the_process_is_no_hang(tmp_path: Path) -> None:
    """Stopped for longer than its deadline, as by Ctrl-Z or a lid that closes, a process goes on."""
    code = (
        "import sys, threading\nfrom pathlib import Path\nfrom qed.guards.watchdog import Watchdog\n"
        f"dog = Watchdog(Path({str(tmp_path / 'heartbeat.json')!r}), 2.0)\ndog.enter('train', 1)\nfound = []\n"
        "thread = threading.Thread(target=dog.watch, args=(found.append,))\nthread.start()\nprint('on', flush=True)\n"
        "sys.stdin.readline()\ndog.end()\nthread.join()\nprint(len(found))\n"
    )
    going = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert going.stdout is not None
    going.stdout.readline()
    going.send_signal(signal.SIGSTOP)
    time.sleep(3)
    going.send_signal(signal.SIGCONT)
    out, _ = going.communicate("end\n", timeout=20)
    assert out == "0\n"


def test_a_report_names_threads_and_children(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"]) as child:
        try:
            write_stacks(tmp_path / "hang.txt", Breach(3, "save", 12.0))
            assert any(one["process"] == child.pid for one in list_children())
        finally:
            child.kill()
    text = (tmp_path / "hang.txt").read_text()
    assert text.startswith("step 3, stage save: 12 s without progress")
    assert "test_a_report_names_threads_and_children" in text
    assert f'"process": {child.pid}' in text
