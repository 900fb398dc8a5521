"""A run on a Ray cluster of two nodes, both on this machine, is the run of one process, whatever happens to it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from cutting import SHARED, TIMES, write_data
from safetensors.torch import load_file

from qed.cli.main import main
from qed.runs import manifest
from qed.runs.run import read_lines

pytest.importorskip("ray", reason="ray is not installed: pip install 'qed[ray]'")

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.xdist_group("ray")]

STEPS, EVERY = 30, 5
GRPO = ["grpo", "--tasks", "problems.jsonl", "--data.reward", "./mine.py", *SHARED, "--lr", 1e-3]
GRPO += ["--steps", STEPS, "--run.save_every", EVERY, "--sampling.problems_per_step", 5, "--sampling.group_size", 4]
GRPO += ["--model.precision", "float64", "--run.watchdog", 120]
REWARD = """
from qed.types import Grade
def reward(rollout):
    right = sum(rollout.output) % 2 == 0
    return Grade(reward=float(right), correct=right, format_ok=True, extracted=None)
"""
PATIENCE = 240  # seconds
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 -- an extra

    folder = tempfile.mkdtemp(prefix="qed-")  # short: the path of a socket has 107 characters
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        cluster.add_node(**node)
        yield cluster.address
        cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the commands are started in."""
    folder = tmp_path_factory.mktemp("ray")
    write_data(folder)
    (folder / "mine.py").write_text(REWARD, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    """The run of one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in [*GRPO, "--out", "one"]])
    assert not left.value.code
    return home / "one"


@pytest.fixture
def start(address: str, home: Path) -> Iterator[Start]:
    """Start a command on the cluster."""
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "qed", *GRPO, "--cluster", address, "--cluster.learners", 2, *arguments]
        going = subprocess.Popen(
            list(map(str, command)), cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(going)
        return going

    yield call
    for going in started:
        going.kill()
        going.communicate()


def wait_for(found: Callable[[], bool], going: subprocess.Popen[str]) -> None:
    for _ in range(PATIENCE * 20):
        if found():
            return
        if going.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"it has not happened: {going.communicate() if going.poll() is not None else ''}")


def count_steps(run: Path) -> int:
    with suppress(OSError):
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def find_rank(number: int, home: Path) -> int:
    """The process id of a rank, by its environment."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and os.readlink(process / "cwd") == str(home):
                variables = (process / "environ").read_bytes().split(b"\0")
                command = (process / "cmdline").read_bytes().split(b"\0")
                if f"RANK={number}".encode() in variables and b"grpo" in command:
                    return int(process.name)
    raise AssertionError(f"rank {number} does not run")


def find_parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def assert_equal(one: Path, other: Path) -> None:
    """Metrics and weights of two runs are the same, but for rounding in float64, times, and the padding of a share."""
    rows = [read_lines(run / "metrics.jsonl") for run in (one, other)]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
    for row, twin in zip(*rows, strict=True):
        for key in (key for key in row if not key.startswith((*TIMES, "train/computed_tokens"))):
            expected = row[key] if isinstance(row[key], str) else pytest.approx(row[key], rel=1e-9, abs=1e-9)
            assert twin[key] == expected, (row["step"], key)
    folders = [manifest.list_checkpoints(run)[STEPS] for run in (one, other)]
    weights = [load_file(folder / "hf" / "model.safetensors") for folder in folders]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=1e-9, atol=1e-9)


def test_two_learners_are_one_process_although_they_are_killed(start: Start, home: Path, undisturbed: Path) -> None:
    """First a rank is killed, then the worker of Ray that has started the other one."""
    run = home / "two"
    going = start("--out", "two", "--json")
    wait_for(lambda: count_steps(run) >= EVERY + 2, going)
    os.kill(find_rank(1, home), signal.SIGKILL)
    wait_for(lambda: (run / "logs" / "attempt_2").is_dir() and count_steps(run) >= 3 * EVERY, going)
    os.kill(find_parent(find_rank(0, home)), signal.SIGKILL)
    out, said = going.communicate(timeout=PATIENCE)
    assert going.returncode == 0, said
    assert json.loads(out)["steps"] == STEPS
    assert "Restart 1 of 3: rank 1" in said
    assert "Restart 2 of 3" in said
    assert "Done: two" in said
    events = [row for row in read_lines(run / "events.jsonl") if row["event"] in ("resumed", "restarted")]
    assert [row["event"] for row in events] == ["restarted", "resumed"] * 2
    assert "killed by signal 9" in events[0]["reason"]
    assert [row["attempt"] for row in events[1::2]] == [2, 3]
    assert_equal(undisturbed, run)


def test_a_signal_saves_the_run(start: Start, home: Path) -> None:
    run = home / "stopped"
    going = start("--out", "stopped")
    wait_for(lambda: count_steps(run) >= 2, going)
    going.send_signal(signal.SIGTERM)
    said = going.communicate(timeout=PATIENCE)[1]
    assert going.returncode == 143, said
    assert "Traceback" not in said
    found = re.search(r"Stopped after step (\d+) by SIGTERM; its checkpoint is saved", said)
    assert found, said
    assert max(manifest.list_checkpoints(run)) == int(found[1])
    with pytest.raises(AssertionError, match="does not run"):
        find_rank(0, home)


def test_a_mistake_is_told_once_and_not_tried_again(start: Start, home: Path) -> None:
    (home / "full").mkdir()
    (home / "full" / "notes.txt").write_text("mine", encoding="utf-8")
    going = start("--out", "full")
    said = going.communicate(timeout=PATIENCE)[1]
    assert going.returncode == 2, said
    assert said.count("error: The folder full already exists") == 1
    assert "Traceback" not in said
    assert "Restart" not in said
