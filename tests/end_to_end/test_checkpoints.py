"""Checkpoints as a user meets them: how many are kept, whether there is room, whether they are whole."""

from __future__ import annotations

import json
import math
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.runs import manifest
from qed.training import checkpoint_size
from qed.training.best import LOSS, is_best, read_scores

TINY = ["--steps", 5, "--sampling.problems_per_step", 2, "--sampling.group_size", 2, "--sampling.max_tokens", 4]
TINY += ["--evaluation.problems", 2, "--algorithm.entropy", 0.01, "--run.save_every", 1]
Usage = namedtuple("Usage", "total used free")


def steps(run: Path) -> list[int]:
    return list(manifest.list_checkpoints(run))


def test_the_newest_are_kept_and_verified(qed: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["grpo", "--out", run, *TINY, "--run.keep_last", 2]
    assert qed(*arguments).code == 0
    assert steps(run) == [5, 4]
    done = qed("checkpoint", "verify", run)
    assert (done.code, done.out) == (0, "step_000005: whole\nstep_000004: whole\n")

    note = run / "checkpoints" / "step_000004" / "hf" / "note.txt"
    note.write_text("mine")
    weights = run / "checkpoints" / "step_000005" / "hf" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    done = qed("checkpoint", "verify", run, "--json")
    assert done.code == 3
    assert done.result["whole"] is False
    assert f"{weights} is damaged" in done.result["checkpoints"]["step_000005"][0]
    assert done.result["checkpoints"]["step_000004"] == [f"{note} is not in the manifest"]

    done = qed(*arguments, "--resume")
    assert done.code == 0, done.err
    (line,) = (line for line in done.out.splitlines() if "is damaged and skipped" in line)
    assert "step_000005/hf/model.safetensors is damaged" in line
    assert weights.read_bytes() == whole
    assert json.loads((run / "checkpoints" / "step_000005" / "state.json").read_text())["step"] == 5
    # What is kept may change with a resume, and the most recent wish is what counts.
    assert qed(*arguments, "--resume", "--steps", 6, "--run.keep_last", 1).code == 0
    assert steps(run) == [6, 5], "the one that `final` named while step 6 was made"
    (run / "checkpoints" / "step_000006" / "state.json").unlink()
    assert qed("checkpoint", "verify", run).out.startswith(
        f"step_000006: {run}/checkpoints/step_000006/state.json is mi"
    )


def test_verify_says_when_there_is_nothing_to_verify(qed: Callable[..., Any], tmp_path: Path) -> None:
    assert qed("checkpoint", "verify", tmp_path / "nowhere").code == 2
    done = qed("checkpoint", "verify", tmp_path)
    assert (done.code, done.out) == (3, "")
    assert "contains no checkpoint" in done.err
    assert qed("checkpoint", "mend", tmp_path).code == 2
    assert qed("checkpoint").code == 2
    assert "verify RUN" in qed("checkpoint", "--help").out
    assert "exit codes" in qed("checkpoint", "verify", "--help").out


def test_a_run_begins_and_saves_only_where_there_is_room(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    arguments = ["grpo", "--out", run, *TINY]
    free = iter([checkpoint_size.MARGIN])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**40, 0, next(free)))
    done = qed(*arguments)
    assert done.code == 1
    assert "Traceback" not in done.err
    for words in ("GiB free", str(run), "run.keep_last", "--out"):
        assert words in done.err
    assert not run.exists(), "the corrected command can take the same folder"
    free = iter([2**40, 2**40, 2**40, 2**40, 0])
    done = qed(*arguments)
    assert done.code == 1
    assert "--resume" in done.err
    assert steps(run) == [2, 1]
    monkeypatch.undo()
    assert qed("checkpoint", "verify", run).code == 0
    assert qed(*arguments, "--resume").code == 0
    assert steps(run) == [5, 4, 3, 2, 1]


def test_the_reference_model_is_verified_too(qed: Callable[..., Any], tmp_path: Path) -> None:
    """A policy held to other weights than it began with would be another run."""
    run = tmp_path / "run"
    arguments = ["grpo", "--out", run, *TINY, "--algorithm.kl", 0.1, "--steps"]
    assert qed(*arguments, 2).code == 0
    arguments.insert(1, "--resume")
    weights = run / "reference" / "step_000000" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    done = qed(*arguments, 3)
    assert done.code == 3
    assert f"{weights} is damaged" in done.err
    assert steps(run) == [2, 1]
    weights.write_bytes(whole)
    weights.parent.rename(tmp_path / "elsewhere")
    done = qed(*arguments, 3)
    assert done.code == 3
    assert f"{weights.parent}, is missing" in done.err
    (tmp_path / "elsewhere").rename(weights.parent)
    assert qed(*arguments, 3).code == 0


def test_what_later_phases_begin_from_is_kept(qed: Callable[..., Any], tmp_path: Path) -> None:
    shared = ["--sft.learner.steps", 3, "--rl.learner.steps", 3, "--run.save_every", 1, "--run.keep_last", 1]
    shared += ["--model", "new:tiny", "--evaluation.problems", 2, "--evaluation.every", 0, "--run.on_no_signal", "warn"]
    done = qed("pipeline", "quickstart", *shared, "--sampling.max_tokens", 8, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert steps(tmp_path / "run") == [6, 3]


@pytest.mark.parametrize("keep", [1, 2])
def test_the_best_are_kept_beside_the_newest(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    """Of equal ones the earlier is better."""
    told = {1: 0.5, 2: 0.75, 3: 0.5, 4: 0.5, 5: 0.75, 6: 0.25}
    before = 0.8 if keep == 1 else 0.75  # of the model before training
    monkeypatch.setattr("qed.loops.evaluator.read_scores", lambda _: told)
    monkeypatch.setattr("qed.loops.train.read_scores", lambda _, first: {0: before, **told})
    run = tmp_path / "run"
    arguments = ["grpo", "--out", run, *TINY, "--run.keep_last", 1, "--run.keep_best", keep, "--steps", 6]
    done = qed(*arguments, "--evaluation.every", 1, "--data.validation_split", 0.1)
    assert done.code == 0, done.err
    assert steps(run) == [6, 2] if keep == 1 else [6, 5, 2]
    assert manifest.read_pointer(run, "BEST") == 2
    assert "best/hf. It is the earliest of 2 with the same score." in done.out
    assert ("The model before training was better there: 0.8, and this one 0.75." in done.out) == (keep == 1)


def test_a_score_that_is_nan_is_none(tmp_path: Path) -> None:
    """Nothing compares with it, so that no later step could be the best, and the order would be that of the rows."""
    losses = {1: 2.0, 2: math.nan, 3: 1.0, 4: 3.0}
    rows = [json.dumps({"step": step, LOSS: loss}) for step, loss in losses.items()]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    scores = read_scores(tmp_path)
    assert scores == {1: -2.0, 3: -1.0, 4: -3.0}
    assert [step for step in losses if is_best(scores, step)] == [1, 3]


def test_the_best_checkpoint_is_kept_and_named_again(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Killed after the save and before BEST, or BEST damaged: what was best is in the checkpoint's own state."""
    run = tmp_path / "run"
    arguments = ["sft", "--model", "new:tiny", "--out", run, "--steps", 4, "--learner.batch_size", 4]
    arguments += ["--evaluation.problems", 4, "--sampling.max_tokens", 8, "--data.validation_split", 0.1]
    arguments += ["--evaluation.every", 1, "--run.keep_last", 1, "--run.save_every", 1]
    assert qed(*arguments).code == 0
    best = manifest.read_pointer(run, "BEST")
    assert best is not None
    assert steps(run) == sorted({4, best}, reverse=True)
    (run / "best").unlink()
    (run / "checkpoints" / "BEST").write_text("../..")
    assert qed(*arguments, "--resume").code == 0
    assert manifest.read_pointer(run, "BEST") == best
    assert (run / "best").resolve() == run / "checkpoints" / f"step_{best:06d}"
