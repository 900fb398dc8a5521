"""The benchmarks of reliability with their smallest settings: what they measure, and that they end with a line of
JSON."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
from faults_parts import damage, rival
from safetensors import SafetensorError
from safetensors.numpy import save_file

import qed

BENCHMARKS = Path(qed.__file__).parents[1] / "benchmarks"


def run(script: str, *more: str) -> dict[str, Any]:
    """The last line of a benchmark, whatever its verdict on so little work."""
    path = os.pathsep.join([str(BENCHMARKS.parent), *filter(None, sys.path)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    asked = [sys.executable, str(BENCHMARKS / script), *more]
    done = subprocess.run(asked, capture_output=True, text=True, env=environment)
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.faults
def test_killed_runs_end_as_one_that_was_not() -> None:
    found = run("kills.py", "--kills", "3", "--method", "sft")
    assert found["kills"] >= 3
    assert found["same"] == found["runs"] >= 1
    assert found["failures"] == []
    assert found["most_steps_lost"] <= found["save_every"]


@pytest.mark.faults
def test_random_runs_under_random_faults_end_as_undisturbed() -> None:
    found = run("random_faults.py", "--runs", "3", "--seed", "5")
    assert (found["runs"], found["same"], found["others"]) == (3, 3, [])
    assert found["faults"] > 0


@pytest.mark.faults
def test_a_soak_measures_memory_and_open_files() -> None:
    found = run("soak.py", "--steps", "40", "--gradings", "4000", "--saves", "0")
    assert set(found) == {"flat", "steps", "gradings"}
    for name in ("steps", "gradings"):
        assert found[name]["files"][1] <= found[name]["files"][0]
        assert min(found[name]["resident"]) > 10


def test_groups_of_faults_are_asked_for_by_name() -> None:
    assert faults.groups_of("s1, c1") == ["C1", "S1"]
    with pytest.raises(argparse.ArgumentTypeError, match="unknown groups: X9; there are R1, R2"):
        faults.groups_of("C1,X9")
    assert run("faults.py", "--only", "C1,D1") == {"groups": ["C1", "D1"]}


def test_a_rival_that_is_not_there_is_said(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no module named trl' >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(SystemExit, match=r"TRL is not installed .* no module named trl"):
        faults.versions(python)


def test_how_a_run_ended_in_words() -> None:
    progress = "{'loss': 1}\nWriting:  50%|##| 1/2\n"
    said = f"{progress}Traceback (most recent call last):\n  File x\n\x1b[1mKeyError: 'prompt'\x1b[0m\n\n"
    broken = rival.Ended(1, 7.4, said)
    assert (broken.traceback, broken.last) == (True, "KeyError: 'prompt'")
    assert rival.ending(broken) == "ends with a traceback: KeyError: 'prompt'"
    assert rival.ending(rival.Ended(2, 0.1, "no such option")) == "ends with no traceback: no such option"
    assert rival.ending(rival.Ended(-15, 3.0, "")) == "killed by signal 15"
    assert rival.ending(rival.Ended(None, 60.2, "")) == "still there after 60 s"
    told = rival.Finding("B1", "no column", "a | b", broken, {"said": []})
    assert faults.card([told])[-1] == "| B1 | no column | 1 | 7 | a \\| b |"
    assert told.plain() == {
        **{"group": "B1", "case": "no column", "outcome": "a | b", "code": 1, "traceback": True},
        **{"last": "KeyError: 'prompt'", "seconds": 7.4, "said": []},
    }


def test_runs_are_cut_damaged_and_compared(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    for step in (2, 4, 10):
        folder = whole / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        save_file({"a": np.full(500, step, np.float32)}, folder / rival.WEIGHTS)
    (whole / "checkpoint-11.tmp").mkdir()
    out = rival.cut(whole, tmp_path / "out", 4)
    assert (rival.checkpoints(whole), rival.checkpoints(out)) == ([2, 4, 10], [2, 4])
    assert rival.checkpoints(tmp_path / "none") == []
    assert rival.difference(whole, out, 4) == 0
    damage.flip(out / "checkpoint-4" / rival.WEIGHTS)
    assert 0 < rival.difference(whole, out, 4) < 1e-6
    assert rival.finite(out, 4)
    damage.half(out / "checkpoint-4" / rival.WEIGHTS)
    with pytest.raises(SafetensorError):
        rival.weights(out, 4)


@pytest.mark.faults
@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed (qed[bench])")
def test_a_group_of_faults_against_trl() -> None:
    found = run("faults.py", "--against", "trl", "--only", "N2")
    assert {one["case"] for one in found["findings"]} == {"all rewards 0", "num_generations=1"}
    assert found["versions"]["trl"].startswith("1.")
