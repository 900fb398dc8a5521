"""The benchmark of the viewer with its smallest settings: what it measures, and that it ends with a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALLEST = "--runs 3 --rows 4 --steps 4 --groups 2 --answers 2 --tokens 32 --rounds 1"

pytestmark = pytest.mark.faults


def test_it_measures_each_part(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    command = [sys.executable, str(ROOT / "benchmarks" / "viewer.py"), *SMALLEST.split(), "--place", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["runs"]["n"] == 3
    assert figures["answers"]["n"] == 4
    for part, name in (("runs", "start_s"), ("steps", "step_s"), ("older", "first_s"), ("answers", "search_s")):
        assert figures[part][name] > 0
    assert list(tmp_path.iterdir()) == []  # what it has generated is gone
