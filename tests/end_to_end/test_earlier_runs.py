"""Runs and checkpoints of an earlier layout and with earlier names: reported, resumed and evaluated as they are.

The archive holds a model of 8,240 weights and three runs of two steps: grpo with a KL that steers its own weight and
flat settings of the algorithm, luffy with written answers counted by `given`, exgrpo with a pool of answers.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.runs.run import read_lines

# The runs were made on all problems of the built-in task; only a slow test has them all.
pytestmark = pytest.mark.slow
ARCHIVE = Path(__file__).with_name("earlier_runs.tar.xz")
METHODS = ("grpo", "luffy", "exgrpo")


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the model and the runs in it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("method", METHODS)
def test_an_earlier_run_is_resumed(earlier: Path, qed: Callable[..., Any], method: str) -> None:
    run = earlier / "runs" / method
    before = read_lines(run / "metrics.jsonl")
    arguments = [method, run / "settings.yaml", "--allow-user-code", "--resume", "--out", run, "--steps", 3]
    done = qed(*arguments)
    assert done.code == 0, done.err
    after = read_lines(run / "metrics.jsonl")
    assert after[: len(before)] == before
    assert [row["step"] for row in after if "train/loss" in row] == [1, 2, 3]
    assert {"time/sample", "time/update"} <= after[-2].keys()
    assert (run / "final" / "hf" / "model.safetensors").is_file()
    kept = json.loads((run / "checkpoints" / "step_000002" / "state.json").read_text())["algorithm"]
    now = json.loads((run / "checkpoints" / "step_000003" / "state.json").read_text())["algorithm"]
    assert bool(kept) == bool(now), "coefficients that the algorithm has set itself are kept under any name"


@pytest.mark.parametrize("method", METHODS)
def test_an_earlier_run_is_reported(earlier: Path, qed: Callable[..., Any], method: str) -> None:
    out = earlier / "report.html"
    done = qed("report", earlier / "runs" / method, "--out", out)
    assert done.code == 0, done.err
    page = out.read_text(encoding="utf-8")
    assert "arithmetic" in page
    assert "Time of a step" in page


def test_an_earlier_run_is_evaluated(earlier: Path, qed: Callable[..., Any]) -> None:
    done = qed(
        "evaluate",
        "--model",
        earlier / "runs" / "grpo",
        "--tasks",
        "arithmetic",
        "--limit",
        2,
        "--allow-user-code",
        "--out",
        "e",
    )
    assert done.code == 0, done.err
    assert (earlier / "e" / "eval" / "step_000002" / "arithmetic.jsonl").is_file()


def test_its_checkpoints_are_whole(earlier: Path, qed: Callable[..., Any]) -> None:
    for method in METHODS:
        assert qed("checkpoint", "verify", earlier / "runs" / method).code == 0
