"""A start that is taught first: made once, found by the next run, and what the run begins from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from qed.loops import warm_start
from qed.runs.run import read_evaluations, read_lines

BASE = """
model: {name: "new:tiny"}
data: {tasks: "withheld:base"}
sampling: {max_tokens: 40}
evaluation: {tasks: withheld, problems: 5}
learner: {steps: STEPS, batch_size: 16}
"""


def write(tmp_path: Path, steps: int = 2) -> Path:
    config = tmp_path / "base.yaml"
    config.write_text(BASE.replace("STEPS", str(steps)))
    return config


def grpo(config: Path) -> list[object]:
    small = ["--tasks", "withheld", "--steps", 1, "--sampling.max_tokens", 40, "--evaluation.problems", 5]
    small += ["--sampling.problems_per_step", 2, "--sampling.group_size", 2]
    return ["grpo", "--model", f"sft:{config}", *small]


@pytest.mark.slow
def test_a_start_is_made_once_and_begun_from(qed: Callable[..., Any], tmp_path: Path) -> None:
    """The second run finds the start of the first; another seed has another start; the control warns and goes on."""
    config = write(tmp_path)
    failing = qed(*grpo(config), "--out", tmp_path / "one")
    assert failing.code == 5, "a model that has hardly learned anything earns no reward, and the run says so"
    (start,) = tmp_path.glob("start--base--*")
    assert [row["step"] for row in read_lines(start / "metrics.jsonl") if "train/loss" in row] == [1, 2]
    told = qed(*grpo(config), "--out", tmp_path / "two", "--run.on_no_signal", "warn")
    assert told.code == 0
    assert "No step of grpo had a gradient" in told.out + told.err
    assert list(tmp_path.glob("start--base--*")) == [start]
    assert f"name: {start}/final/hf" in (tmp_path / "two" / "settings.yaml").read_text()
    assert dict(read_evaluations(tmp_path / "two"))[0] == dict(read_evaluations(start))[2]
    qed(*grpo(config), "--out", tmp_path / "three", "--seed", 1)
    assert len(list(tmp_path.glob("start--base--*"))) == 2


def test_what_no_start_can_be_is_said(qed: Callable[..., Any], tmp_path: Path) -> None:
    """A config that is not there, and one that has a warm start itself."""
    assert "Did you mean 'withheld-base'" in qed("grpo", "--model", "sft:withheld-bas", "--dry-run").err
    config = tmp_path / "own.yaml"
    config.write_text('model: {name: "sft:withheld-base"}')
    for extra in ([], ["--dry-run"]):
        done = qed("grpo", "--model", f"sft:{config}", "--out", tmp_path / "run", *extra)
        assert done.code == 2
        assert "cannot have a warm start itself" in done.err


def test_a_start_in_the_hands_of_another_run_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a model already, and gets its name in a moment."""
    monkeypatch.setattr(warm_start, "list_changes", lambda *_: ([], []))
    settings: Any = None
    for number in ("12345678.abcdef01", "87654321"):
        assert warm_start._find_trained(tmp_path, "start--my[1]", settings) is None
        (tmp_path / f"start--my[1]--{number}" / "final" / "hf").mkdir(parents=True)
    found = warm_start._find_trained(tmp_path, "start--my[1]", settings)
    assert found == tmp_path / "start--my[1]--87654321"


@pytest.mark.slow
def test_a_start_that_an_earlier_version_made_is_found(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Its folder's name comes from settings that were fewer then."""
    config = write(tmp_path)
    qed(*grpo(config), "--out", tmp_path / "one", "--run.on_no_signal", "warn")
    (start,) = tmp_path.glob("start--base--*")
    saved = yaml.safe_load((start / "settings.yaml").read_text())
    del saved["learner"]["epochs"], saved["data"]["truncation"]
    (start / "settings.yaml").write_text(yaml.dump(saved))
    start.rename(start.with_name("start--base--00000000"))
    again = qed(*grpo(config), "--out", tmp_path / "one", "--run.on_no_signal", "warn", "--overwrite")
    assert again.code == 0, again.err
    assert [folder.name for folder in tmp_path.glob("start--*")] == ["start--base--00000000"]
