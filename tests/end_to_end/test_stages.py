"""What a run writes of the time of its stages, and that runs of earlier versions are read as those of today."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import OFFLINE, ONLINE, SHARED, assert_same, cut, write_data
from run_folders import Page

from qed.loops.phase import Phase
from qed.report.write import write_report
from qed.runs.metric_names import RENAMED
from qed.runs.run import read_lines
from qed.sampling.native.sampler import NativeSampler

OF_A_STEP = {
    "grpo": {"sample", "grade", "score", "update", "sync"},
    "dpo": {"score", "update"},
    "sft": {"update"},
}


@pytest.mark.parametrize("name", OF_A_STEP)
def test_a_row_has_the_time_of_each_stage(
    qed: Callable[..., Any], command: Callable[..., list[Any]], tmp_path: Path, name: str
) -> None:
    """A checkpoint behind every other step is in the row of the step that follows it, an evaluation in its own row."""
    run = tmp_path / "run"
    done = qed(*command(name, *(ONLINE if name == "grpo" else OFFLINE), "--evaluation.every", 2), "--out", run)
    assert done.code == 0, done.err
    rows = read_lines(run / "metrics.jsonl")
    for row in rows:
        times = {key.removeprefix("time/"): row[key] for key in row if key.startswith("time/")}
        assert all(seconds >= 0 for seconds in times.values())
        if "train/rows" not in row:
            assert set(times) == {"evaluate"}
            continue
        assert set(times) == OF_A_STEP[name] | {"step"} | ({"save"} if row["step"] == 3 else set())
        assert sum(times[stage] for stage in OF_A_STEP[name]) <= times["step"]
    assert [row["step"] for row in rows if "time/evaluate" in row] == [0, 2, 4]


def test_nothing_holds_gradients_while_answers_are_sampled(
    qed: Callable[..., Any], command: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, held = NativeSampler.generate_batches, []

    def looking(self: NativeSampler, *arguments: Any) -> Any:
        held.append(sum(parameter.grad is not None for parameter in self.model.parameters()))
        return generate(self, *arguments)

    monkeypatch.setattr(NativeSampler, "generate_batches", looking)
    several = ("--learner.batch_size", 8, "--learner.passes", 2, "--algorithm.entropy", 0.01)
    assert qed(*command("grpo", *ONLINE, *several), "--out", tmp_path / "run").code == 0
    assert len(held) > 4
    assert not any(held)


def test_a_run_with_the_old_names_is_reported_and_goes_on(
    qed: Callable[..., Any], command: Callable[..., list[Any]], uncut: Callable[[list[Any]], Path], tmp_path: Path
) -> None:
    """Nothing is evaluated twice, and both parts are in its report."""
    arguments = command("grpo", *ONLINE, "--evaluation.every", 1)
    whole = uncut(arguments)
    old = cut(whole, 2, tmp_path / "old")
    names = {new: old for old, new in RENAMED.items()}
    rows = [{names.get(key, key): value for key, value in row.items()} for row in read_lines(old / "metrics.jsonl")]
    (old / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    today, before = (Page(write_report([run], tmp_path / f"{run.name}.html")) for run in (whole, old))
    for page in (today, before):
        for said in ("training time", "Time of a step", "whole step", "sampling", "updating", "5 evaluations"):
            assert said in page.text, said
    assert qed(*arguments, "--out", old, "--resume").code == 0
    rows = read_lines(old / "metrics.jsonl")
    assert [row["step"] for row in rows if "time/evaluation_s" in row] == [0, 1, 2]
    assert [row["step"] for row in rows if "time/evaluate" in row] == [3, 4]
    assert_same(whole, old)


def test_the_memory_of_a_phase_is_free_when_it_has_ended(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer of SFT is gone when GRPO begins, without a search for garbage, which may be a long time away."""
    begin, optimizers, alive = Phase.begin, list[Any](), list[list[bool]]()

    def look(self: Phase) -> None:
        optimizers.append(weakref.ref(self.learner.optimizer))
        alive.append([reference() is not None for reference in optimizers])
        begin(self)

    monkeypatch.setattr(Phase, "begin", look)
    arguments = ["pipeline", "--tasks", write_data(tmp_path)[0], *SHARED, *ONLINE]
    arguments += ["--sft.learner.steps", 2, "--rl.learner.steps", 2, "--sft.learner.batch_size", 4]
    gc.disable()
    try:
        assert qed(*arguments, "--out", tmp_path / "run").code == 0
    finally:
        gc.enable()
    assert alive == [[True], [False, True]]
