"""SFT on windows of the stream of all demonstrations, through the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.runs.run import read_lines

SMALL = ["--sampling.max_tokens", 8, "--evaluation.problems", 2, "--evaluation.samples", 0, "--evaluation.tasks"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Pairs of prompt and response without an answer, and problems with one to evaluate on."""
    pairs = [{"prompt": f"Say {number}.", "response": f"Here: {number}. " * 9} for number in range(20)]
    asked = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(4)]
    for name, rows in (("train", pairs), ("held", asked)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path / "train.jsonl", tmp_path / "held.jsonl"


def test_windows_train_and_are_counted(qed: Callable[..., Any], files: tuple[Path, Path], tmp_path: Path) -> None:
    """Every window is full, so a step trains batch x window tokens; packing of rows goes with it."""
    train, held = files
    arguments = ["sft", "--model", "new:tiny", "--tasks", train, "--prompt", "alpaca", "--out", tmp_path / "run"]
    arguments += ["--data.window", 32, "--learner.packing", "true", "--learner.batch_size", 8, "--steps", 6]
    done = qed(*arguments, *SMALL, held)
    assert done.code == 0, done.err
    (event,) = (row for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "windows")
    assert event["demonstrations"] == 20
    assert event["steps_per_epoch"] == math.ceil(event["windows"] / 8)
    rows = [row for row in read_lines(tmp_path / "run" / "metrics.jsonl") if "train/loss" in row]
    assert {row["train/tokens"] for row in rows} == {8 * 32}
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


@pytest.mark.parametrize(
    ("window", "code", "words"),
    [(513, 2, "context window has only 512"), (-1, 2, "negative"), (0, 0, ""), (500, 0, "")],
)
def test_a_window_must_fit_the_model(
    qed: Callable[..., Any], files: tuple[Path, Path], tmp_path: Path, window: int, code: int, words: str
) -> None:
    train, held = files
    arguments = ["sft", "--model", "new:tiny", "--tasks", train, "--prompt", "alpaca", "--out", tmp_path / "run"]
    done = qed(*arguments, "--data.window", window, "--learner.batch_size", 2, "--steps", 1, *SMALL, held)
    assert done.code == code, done.err
    assert words in done.err


def test_demonstrations_that_fill_no_window_are_refused(qed: Callable[..., Any], tmp_path: Path) -> None:
    train = tmp_path / "train.jsonl"
    train.write_text(json.dumps({"prompt": "x?", "response": "y"}) + "\n", encoding="utf-8")
    held = tmp_path / "held.jsonl"
    held.write_text(json.dumps({"question": "x + 1?", "answer": "2"}) + "\n", encoding="utf-8")
    arguments = ["sft", "--model", "new:tiny", "--tasks", train, "--prompt", "alpaca", "--out", tmp_path / "run"]
    done = qed(*arguments, "--data.window", 500, "--steps", 1, *SMALL, held)
    assert done.code == 3
    assert "do not fill one window" in done.err
