"""Signals to launchers: the run is saved, its exit code is told, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cutting import ONLINE
from ranks import PATIENCE, read_events, wait_for_step

pytestmark = pytest.mark.faults
LAUNCHERS = {"qed": ["-m", "qed"], "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "qed"]}
# The launcher, who gets the signals ("parent" or a rank), the signals, and the exit code.
CASES: list[tuple[str, str, list[int], int]] = [
    ("qed", "parent", [signal.SIGTERM], 143),
    ("qed", "parent", [signal.SIGINT], 130),
    ("qed", "parent", [signal.SIGINT, signal.SIGINT], 130),
    ("qed", "1", [signal.SIGTERM], 143),
    ("qed", "parent", [signal.SIGKILL], -9),
    ("torchrun", "parent", [signal.SIGTERM], 143),
]


def find_processes(out: Path) -> dict[int, str]:
    """The processes whose command names a folder, by id, with their rank; empty for a launcher."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(out).encode() not in (folder / "cmdline").read_bytes().split(b"\0"):
                continue
            entries = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found[int(folder.name)] = next((each[5:].decode() for each in entries if each.startswith(b"RANK=")), "")
    return found


def wait_for_none(out: Path) -> dict[int, str]:
    """Wait until no process of a run is left; those that are left after all."""
    end = time.monotonic() + PATIENCE
    while (left := find_processes(out)) and time.monotonic() < end:
        time.sleep(0.2)
    return left


@pytest.mark.parametrize(("launcher", "target", "numbers", "code"), CASES)
def test_a_signal_saves_the_run_and_leaves_no_process(
    command: Callable[..., list[object]], tmp_path: Path, launcher: str, target: str, numbers: list[int], code: int
) -> None:
    out = tmp_path / "run"
    more = [*ONLINE, "--algorithm.entropy", 0.01, "--learner.steps", 1000, "--out", out]
    ranks = [] if launcher == "torchrun" else ["--ranks", 2]
    arguments = [*LAUNCHERS[launcher], *map(str, [*command("grpo", *more), *ranks])]
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen([sys.executable, *arguments], stdout=said, stderr=said, start_new_session=True)
    try:
        wait_for_step(out, 1)
        ids = {rank: each for each, rank in find_processes(out).items()}
        assert {"0", "1"} <= set(ids)
        for number in numbers:
            os.kill(process.pid if target == "parent" else ids[target], number)
            time.sleep(0.01)
        ended = process.wait(PATIENCE)
        assert wait_for_none(out) == {}
    finally:
        for left in find_processes(out):
            os.kill(left, signal.SIGKILL)
    words = (tmp_path / "said.txt").read_text()
    if launcher == "qed":
        assert ended == code, words
    if len(numbers) == 1 and code > 0:
        last = [each for each in read_events(out) if each["event"] == "interrupted"][-1]
        assert last["exit_code"] == code, words
        saved = int((out / "checkpoints/LATEST").read_text().strip().removeprefix("step_"))
        assert saved >= 1
        assert f"Stopped after step {saved} by " in last["reason"], words
