"""qed dpo learns from a file of preference pairs; what it leaves out is counted, and what it compares with is kept."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.config.sampling_settings import EvaluationSettings
from qed.config.settings import DataSettings
from qed.data.splits import load_problems
from qed.loops import reference
from qed.loops.epochs import count_steps
from qed.runs.run import read_lines


def write_pairs(file: Path, count: int = 60) -> Path:
    """The chosen reply states the sum, the rejected one does not; every third row has messages in place of texts."""
    source, rows = random.Random(0), []
    for number in range(count):
        one, other = source.randrange(100), source.randrange(100)
        row: dict[str, Any] = {
            "prompt": f"What is {one} + {other}?",
            "chosen": f"The sum of {one} and {other} is {one + other}.",
            "rejected": f"I would rather not add {other} to {one}.",
        }
        if number % 3 == 0:
            row = {key: [{"role": "assistant", "content": text}] for key, text in row.items()}
            row["prompt"][0]["role"] = "user"
        rows.append(row)
    rows.append(rows[1] | {"rejected": rows[1]["chosen"]})
    rows.append(rows[2] | {"rejected": "no " * 2000})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def arguments(file: Path, out: Path, *more: object) -> list[object]:
    shared = ["--model", "new:tiny", "--prompt", "question_only", "--data.validation_split", 0.2, "--seed", 1]
    shared += ["--learner.batch_size", 16, "--lr", 1e-3, "--learner.schedule", "constant"]
    return ["dpo", "--tasks", file, "--out", out, *shared, *more]


@pytest.mark.slow
def test_dpo_learns_what_is_preferred(qed: Callable[..., Any], tmp_path: Path) -> None:
    """On pairs that were held back too; two rows cannot be used, and are counted."""
    run = tmp_path / "run"
    done = qed(*arguments(write_pairs(tmp_path / "pairs.jsonl"), run, "--steps", 25, "--evaluation.every", 5))
    assert done.code == 0, done.err
    rows = read_lines(run / "metrics.jsonl")
    trained = [row for row in rows if "train/loss" in row]
    assert trained[0]["train/loss"] == pytest.approx(0.6931, abs=1e-3)
    assert trained[-1]["train/loss"] < 0.3
    assert trained[-1]["rewards/accuracy"] == 1
    assert trained[-1]["rewards/margin"] > 1
    held = {row["step"]: row["eval/validation/preferred"] for row in rows if "eval/validation/preferred" in row}
    assert sorted(held) == [0, 5, 10, 15, 20, 25]
    assert held[0] == 0
    assert held[25] > 0.9
    assert (run / "best" / "hf").is_dir()
    (left_out,) = (row for row in read_lines(run / "events.jsonl") if row["event"] == "pairs_left_out")
    assert (left_out["alike"], left_out["too_long"], left_out["without_preference"]) == (1, 1, 0)


def test_a_resumed_run_compares_with_the_same_reference(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept as a model, scored beforehand, or named: the losses agree, and a run that was cut goes on as if it were
    not."""
    file = write_pairs(tmp_path / "pairs.jsonl", 30)
    few = ("--evaluation.problems", 4, "--run.save_every", 2)
    losses, saved, save = {}, list[Any](), reference.save_reference
    monkeypatch.setattr(reference, "save_reference", lambda *given: (saved.append(given), save(*given)))
    for name, extra in (("kept", ()), ("beforehand", ("--algorithm.precompute_reference",))):
        whole, cut = tmp_path / name, tmp_path / f"{name}-cut"
        assert qed(*arguments(file, whole, *few, *extra, "--steps", 4)).code == 0
        assert qed(*arguments(file, cut, *few, *extra, "--steps", 2)).code == 0
        assert qed(*arguments(file, cut, *few, *extra, "--steps", 4), "--resume").code == 0
        weights = [(run / "final" / "hf" / "model.safetensors").read_bytes() for run in (whole, cut)]
        assert weights[0] == weights[1]
        losses[name] = [row["train/loss"] for row in read_lines(whole / "metrics.jsonl") if "train/loss" in row]
    assert len(saved) == 4, "each run saves its reference once, also for several parts of the data"
    assert losses["kept"] == pytest.approx(losses["beforehand"], abs=1e-5)
    assert len(list((tmp_path / "beforehand-cut" / "reference").glob("logps_*.npy"))) == 2
    more = ("--model", tmp_path / "kept" / "final" / "hf", "--steps", 1)
    against = tmp_path / "kept" / "reference" / "step_000000"
    done = qed(*arguments(file, tmp_path / "named", *few, *more, "--algorithm.reference_model", against))
    assert done.code == 0, done.err
    first = next(row for row in read_lines(tmp_path / "named" / "metrics.jsonl") if "train/loss" in row)
    assert first["rewards/margin"] > 0, "the policy has moved away from what it is compared with"
    refused = qed(*arguments(file, tmp_path / "other", "--algorithm.reference_model", "new:tiny"))
    assert refused.code == 2
    assert "algorithm.reference_model" in refused.err


def test_dpo_says_what_data_it_needs(qed: Callable[..., Any], tmp_path: Path) -> None:
    done = qed("dpo", "--out", tmp_path / "run", "--steps", 1, "--evaluation.problems", 4)
    assert done.code == 3
    assert "online-dpo" in done.err


def test_a_dry_run_counts_the_steps_of_the_run(qed: Callable[..., Any], tmp_path: Path) -> None:
    """An odd batch has as many pairs as the next even one, and 0.1 of 30 pairs are 3."""
    assert count_steps(0.1, 30, 1) == 3
    words = arguments(write_pairs(tmp_path / "pairs.jsonl"), tmp_path / "run", "--steps", 2, "--learner.batch_size")
    for size, pairs in ((1, 1), (5, 3), (6, 3)):
        assert f"2 steps of {pairs} pairs" in qed(*words, size, "--dry-run").out


@pytest.mark.parametrize("name", ["dpo", "reward-model"])
def test_a_file_without_pairs_is_said_to_have_none(qed: Callable[..., Any], tmp_path: Path, name: str) -> None:
    file = tmp_path / "alpaca.jsonl"
    rows = [{"instruction": f"Name {number}.", "input": "", "output": "So."} for number in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for more in ((), ("--dry-run",)):
        done = qed(name, "--tasks", file, "--model", "new:tiny", "--steps", 1, "--out", tmp_path / "run", *more)
        assert done.code == 3
        assert "no preference pair to learn from" in done.err
        assert "columns prompt, chosen and rejected" in done.err


def test_pairs_beside_other_rows_need_no_benchmark(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "pairs.jsonl", 30)
    for more in ({"prompt": "Say.", "completion": "So."}, {"question": "1 + 1?", "answer": "2"}):
        file.write_text(file.read_text() + json.dumps(more) + "\n")
        loaded = load_problems(DataSettings(tasks=(str(file),)), EvaluationSettings(), 0, compares=True)
        assert not loaded.benchmarks
        assert sum(problem.is_preference for problem in loaded.problems) == 32


def test_a_run_without_a_benchmark_is_told_to_name_one(qed: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert qed(*arguments(write_pairs(tmp_path / "pairs.jsonl"), run, "--steps", 1)).code == 0
    refused = qed("evaluate", "--model", run)
    assert (refused.code, "held out no problem with an answer" in refused.err) == (2, True), refused.err
