"""The look before the first step: what it says, what it refuses, and that a run goes on as if it had not been."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.algorithms.base import Algorithm
from qed.algorithms.opd import Opd
from qed.algorithms.opsd import Opsd
from qed.algorithms.sft import Sft
from qed.errors import UsageError
from qed.guards.preflight_rules import (
    Answers,
    Finding,
    check_answers,
    check_demonstrations,
    check_disk,
    check_ends,
    check_memory,
    check_prefixes,
    check_schedule,
    check_weights,
    check_window,
    refuse,
)
from qed.runs.run import read_lines

SMALL = ["--steps", 2, "--sampling.problems_per_step", 2, "--sampling.group_size", 2, "--sampling.max_tokens", 6]
SMALL += ["--evaluation.problems", 2, "--evaluation.samples", 0, "--learner.batch_size", 4]
FINE = Answers(truncated=0.1, readable=0.9, right=0.5, reward=0.5, signal=0.5)


def test_a_run_is_the_same_with_it_and_without(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Weights and rollouts are equal bit by bit; a run that goes on is not looked at again."""
    shared = ["grpo", *SMALL, "--algorithm.entropy", 0.01, "--run.save_every", 1]
    looked, plain = tmp_path / "looked", tmp_path / "plain"
    done = qed(*shared, "--out", looked)
    assert done.code == 0, done.err
    assert "Before grpo: 4 problems x 2 answers" in done.out
    assert qed(*shared, "--out", plain, "--run.preflight", "off").code == 0
    for name in ("final/hf/model.safetensors", "rollouts/step_000001.jsonl.zst", "rollouts/step_000002.jsonl.zst"):
        assert (looked / name).read_bytes() == (plain / name).read_bytes(), name
    events = [[event["event"] for event in read_lines(run / "events.jsonl")] for run in (looked, plain)]
    assert [kinds.count("preflight") for kinds in events] == [1, 0]
    again = qed(*shared, "--steps", 3, "--out", looked, "--resume")
    assert again.code == 0, again.err
    assert "Before grpo" not in again.out


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_what_is_imitated_ends(qed: Callable[..., Any], tmp_path: Path, method: str) -> None:
    arguments: list[object] = [method, "--out", tmp_path / "run", *SMALL]
    if method == "dpo":
        file = tmp_path / "pairs.jsonl"
        rows = [{"prompt": f"{n} + 1?", "chosen": str(n + 1), "rejected": "0"} for n in range(20)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        arguments += ["--tasks", file, "--prompt", "question_only"]
    done = qed(*arguments)
    assert done.code == 0, done.err
    (event,) = [event for event in read_lines(tmp_path / "run" / "events.jsonl") if event["event"] == "preflight"]
    count = {"sft": 32, "dpo": 40}[method]
    assert event["end token in the loss"] == f"{count} of {count} rows"


@pytest.mark.parametrize("preflight", ["on", "off"])
def test_an_end_that_is_never_taught_is_refused(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preflight: str
) -> None:
    """An algorithm of somebody's own whose weights leave out the last token of every answer."""

    def weights(self: Sft, batch: Any, length: int) -> Any:
        return Algorithm.weights(self, batch, length) * (batch.mask.flip(1).cumsum(1).flip(1) > 1)

    monkeypatch.setattr(Sft, "weights", weights)
    done = qed("sft", "--out", tmp_path / "run", *SMALL, "--run.preflight", preflight)
    assert done.code == (2 if preflight == "on" else 0), done.err
    assert preflight == "off" or ("would never learn to end" in done.err and "run.preflight=false" in done.err)


def test_a_reward_without_weight_is_refused(qed: Callable[..., Any], tmp_path: Path) -> None:
    done = qed("grpo", "--out", tmp_path / "run", *SMALL, "--reward", "0*auto")
    assert done.code == 2
    assert "has the weight 0" in done.err
    assert not list((tmp_path / "run").glob("rollouts/*"))


def test_a_disk_that_is_too_small_is_refused(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qed.runs.disk.require_space", lambda *_, **__: None)
    monkeypatch.setattr("qed.loops.preflight.checkpoint_bytes", lambda *_, **__: 1 << 50)
    done = qed("grpo", "--out", tmp_path / "run", *SMALL, "--run.save_every", 1)
    assert done.code == 2
    assert "2 checkpoints" in done.err
    assert "run.keep_last" in done.err


def test_a_model_that_is_not_taught_yet_is_warned_of_and_trained(qed: Callable[..., Any], tmp_path: Path) -> None:
    done = qed("grpo", "--out", tmp_path / "run", *SMALL, "--run.on_no_signal", "warn")
    assert done.code == 0, done.err
    assert "Warning: No answer has the format that the reward reads" in done.out


def test_the_groups_of_luffy_vary_by_their_demonstrations(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Those that fit; longer ones join no group, and the run has no signal."""
    longer = qed("luffy", "--out", tmp_path / "cut", *SMALL, "--sampling.max_tokens", 1)
    assert (longer.code, "earn the same" in longer.out) == (5, True)
    done = qed("luffy", "--out", tmp_path / "run", *SMALL, "--sampling.max_tokens", 64)
    assert done.code == 0, done.err
    assert "groups with signal, demonstrations aside" in done.out
    assert "earn the same" not in done.out


def test_a_demonstration_that_earns_what_answers_earn_is_no_signal(qed: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text("def paid(completions, **columns):\n    return [1.0 for _ in completions]\n")
    options = ["--sampling.max_tokens", 64, "--reward", tmp_path / "same.py"]
    done = qed("luffy", "--out", tmp_path / "run", *SMALL, *options)
    assert (done.code, "earn the same" in done.out, "demonstrations aside" in done.out) == (5, True, False)


@pytest.mark.parametrize(
    ("findings", "word"),
    [
        (check_answers(Answers(1.0, 0.5, 0.1, 0.1, 0.5), 48), "sampling.max_tokens=48"),
        (check_answers(Answers(1.0, 0.5, 0.1, 0.1, 0.5), 48, turns=True), "48, which includes the environment"),
        (check_answers(Answers(0.0, 0.0, 0.0, 0.0, 0.5), 48), "SFT"),
        (check_answers(Answers(0.0, 0.5, 0.0, 0.0, 0.0), 48), "run.on_no_signal decides"),
        (check_answers(Answers(0.0, 0.5, 0.5, None, 0.5, 1.0), 48), "For 100% of the answers every reward function"),
        (check_answers(Answers(0.0, 0.0, 0.0, None, 0.5, 1.0), 48), "For 100% of the answers every reward function"),
        (check_prefixes(3, 4), "special token"),
        (check_window(20, 32, 48), "20 of 32"),
        (check_schedule(0.0, 0, 10), "learner.lr is 0"),
        (check_schedule(1e-3, 10, 10), "learner.warmup_steps=10"),
        (check_memory(2 << 30, 1 << 30, 1 << 30), "learner.tokens_per_microbatch"),
        (check_disk(1 << 20, 2, 1 << 40, 1 << 30), "run.save_rollouts=false"),
    ],
)
def test_what_hardly_works_is_warned_of(findings: list[Finding], word: str) -> None:
    (advice,) = [finding.advice for finding in findings if finding.advice]
    assert word in advice
    refuse(findings)


@pytest.mark.parametrize(
    "findings",
    [
        check_answers(FINE, 48),
        check_answers(Answers(0.0, 0.5, 0.0, 0.0, 0.0), 48, joined=True),
        check_prefixes(4, 4),
        check_prefixes(0, 0),
        check_window(3, 32, 48),
        check_window(0, 0, 48),
        check_schedule(1e-6, 5, 10),
        check_memory(1 << 20, 1 << 20, None),
        check_memory(1 << 20, 1 << 20, 1 << 30),
        check_disk(1 << 20, 2, 1 << 20, 1 << 30),
        check_weights([0.0, 1.0]),
        check_ends(0, 0, "answers", imitated=True),
        check_ends(1, 9, "answers", imitated=True),
        check_ends(0, 9, "answers", imitated=False),
    ],
)
def test_what_works_is_not(findings: list[Finding]) -> None:
    assert not any(finding.advice for finding in findings)


@pytest.mark.parametrize(
    "findings", [check_weights([0.0]), check_ends(0, 9, "rows", imitated=True), check_disk(1 << 30, 3, 0, 2 << 30)]
)
def test_what_cannot_work_is_refused(findings: list[Finding]) -> None:
    with pytest.raises(UsageError, match=r"run\.preflight=false"):
        refuse(findings)


def test_demonstrations_that_teach_another_form_are_named() -> None:
    assert check_demonstrations([]) == []
    (fine,) = check_demonstrations(["", "wrong", ""])
    assert (fine.found, fine.advice) == ("2 of 3", "")
    (bad,) = check_demonstrations(["wrong", "cut", "wrong", ""])
    assert bad.found == "1 of 4"
    assert "2: wrong; 1: cut" in bad.advice
    assert not bad.fatal


@pytest.mark.parametrize("kind", [Opd, Opsd])
def test_a_teacher_alone_needs_no_reward(kind: type[Opd] | type[Opsd]) -> None:
    assert not kind().reads_rewards
    assert kind(reward=0.5).reads_rewards
    same = Answers(0.0, 0.0, 0.0, 0.0, 0.0)
    assert not [finding for finding in check_answers(same, 48, kind().reads_rewards) if finding.advice]
