"""Runs without a signal: each kind is named within five steps, and a run that had none to its end exits with 5."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.models.load import build_model
from qed.rollout.stages import grade
from qed.runs.run import read_lines
from qed.types import Completion, Grade, Groups

SMALL = ["--steps", 5, "--sampling.problems_per_step", 2, "--sampling.group_size", 2, "--sampling.max_tokens", 4]
SMALL += ["--evaluation.problems", 2, "--evaluation.samples", 0]


def verdict(right: bool, form: bool) -> Grade:
    return Grade(float(right), right, form, "1" if form else None)


@pytest.mark.parametrize("ending", ["stop", "warn"])
@pytest.mark.parametrize(
    ("name", "grade_of", "reason"),
    [
        ("all_wrong", verdict(False, True), "stop"),
        ("all_right", verdict(True, True), "stop"),
        ("all_unreadable", verdict(False, False), "stop"),
        ("all_truncated", verdict(False, False), "length"),
        ("all_empty", verdict(False, False), "empty"),
    ],
)
def test_it_is_named_and_ends_with_5(
    qed: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    grade_of: Grade,
    reason: str,
    ending: str,
) -> None:
    def grading(groups: Groups, grader: Any) -> None:
        for rollout in (rollout for group in groups for rollout in group):
            rollout.output, rollout.logps = ((1,), (-1.0,)) if reason == "empty" else ((2, 3, 1), (-1.0,) * 3)
            rollout.stop_reason = "length" if reason == "length" else "stop"
        grade(groups, lambda _: [[grade_of for _ in group] for group in groups])

    monkeypatch.setattr("qed.rollout.collector.grade", grading)
    run = tmp_path / "run"
    done = qed("grpo", "--out", run, *SMALL, "--run.on_no_signal", ending)
    assert done.code == (5 if ending == "stop" else 0), done.err
    alarms = [event for event in read_lines(run / "events.jsonl") if event["event"] == "alarm"]
    assert [event["name"] for event in alarms] == [name]
    assert alarms[0]["step"] <= 5
    assert done.out.count(f"Warning, step {alarms[0]['step']}: Every answer") + done.out.count("No answer of") == 1
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<h2>Alarms</h2>" in page
    assert "earned the same" in page


def test_an_alarm_is_not_told_again_by_a_run_that_goes_on(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grading(groups: Groups, grader: Any) -> None:
        grade(groups, lambda _: [[verdict(False, True) for _ in group] for group in groups])

    monkeypatch.setattr("qed.rollout.collector.grade", grading)
    shared = ["grpo", "--out", tmp_path / "run", *SMALL, "--run.on_no_signal", "warn", "--run.save_every", 1]
    assert qed(*shared).code == 0
    assert qed(*shared, "--steps", 8, "--resume").code == 0
    events = read_lines(tmp_path / "run" / "events.jsonl")
    assert sum(event["event"] == "alarm" for event in events) == 1


def test_groups_of_one_are_refused(qed: Callable[..., Any], tmp_path: Path) -> None:
    done = qed("grpo", "--out", tmp_path / "run", *SMALL, "--sampling.group_size", 1)
    assert done.code == 2
    assert "compares the answers to a problem with each other" in done.err


@pytest.mark.parametrize("tied", [20, 15])
def test_pairs_that_say_the_same(qed: Callable[..., Any], tmp_path: Path, tied: int) -> None:
    """Where all pairs are alike there is nothing to learn; where some are, they are left out and counted."""
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{n}?", "chosen": str(n), "rejected": str(n) if n < tied else "no"} for n in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = qed("dpo", "--tasks", file, "--prompt", "question_only", "--out", tmp_path / "run", *SMALL, "--steps", 1)
    assert done.code == (3 if tied == 20 else 0), done.err
    assert f"{tied} whose two replies are the same" in done.out
    assert tied < 20 or "no preference pair to learn from" in done.err


def test_a_model_that_writes_nothing(qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is its end token: nothing to read, nothing to learn, and no crash anywhere."""

    def generate(self: Any, prompts: Any, seeds: Any, sampling: Any, given: Any = ()) -> list[list[Completion]]:
        return [[Completion((self.ends[0],), (-1.0,), "stop") for _ in own] for own in seeds]

    monkeypatch.setattr("qed.sampling.native.sampler.NativeSampler.generate", generate)
    assert "log-probs are not" in qed("grpo", "--out", tmp_path / "refused", *SMALL).err, "which are made up here"
    done = qed("grpo", "--out", tmp_path / "run", *SMALL, "--run.preflight", "false")
    assert done.code == 5, done.err
    alarms = [event["name"] for event in read_lines(tmp_path / "run" / "events.jsonl") if event["event"] == "alarm"]
    assert alarms == ["all_empty"]


def test_a_teacher_that_is_the_policy_is_named(qed: Callable[..., Any], tmp_path: Path) -> None:
    network, tokenizer = build_model("new:tiny", ["What is 1 + 2? One and two make three."], seed=0)
    network.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    same = ("--model", tmp_path / "model", "--algorithm.teacher", tmp_path / "model")
    done = qed("opd", "--out", tmp_path / "run", *SMALL, *same)
    assert done.code == 5, done.err
    assert "the teacher agrees with the policy on every token" in done.err
