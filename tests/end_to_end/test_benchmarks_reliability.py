"""The benchmarks of reliability with their smallest settings: what they measure, and that they end with a line of
JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
def test_a_soak_measures_memory_and_open_files() -> None:
    found = run("soak.py", "--steps", "40", "--gradings", "4000", "--saves", "0")
    assert set(found) == {"flat", "steps", "gradings"}
    for name in ("steps", "gradings"):
        assert found[name]["files"][1] <= found[name]["files"][0]
        assert min(found[name]["resident"]) > 10
