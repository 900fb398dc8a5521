"""The main job on real text: GSM8K problems, the r1_zero prompt, SFT and then GRPO, from a model built on that text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from qed.runs.run import read_evaluations, read_lines

# Answers of 24 tokens: long enough to be graded, short enough for a test; most are cut, which must be counted.
SMALL = ["--sampling.max_tokens", 24, "--sampling.problems_per_step", 4, "--sampling.group_size", 4]
SMALL += ["--evaluation.problems", 8, "--evaluation.samples", 1]


@pytest.fixture(scope="session")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred real problems where the data is at hand, else a few written here in the same form."""
    source = Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k" / "train.jsonl"
    file = tmp_path_factory.mktemp("data") / "train.jsonl"
    if source.is_file():
        lines = source.read_text(encoding="utf-8").splitlines()[:300]
    else:
        rows = [
            {
                "question": f"Tom has {a} boxes of {b} pens. How many pens does Tom have?",
                "answer": f"Tom has {a}*{b}=<<{a}*{b}={a * b}>>{a * b} pens.\n#### {a * b}",
            }
            for a in range(2, 17)
            for b in range(2, 22)
        ]
        lines = [json.dumps(row) for row in rows]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def rows_of(run: Path, phase: str) -> list[dict[str, Any]]:
    return [row for row in read_lines(run / "metrics.jsonl") if row["phase"] == phase and "train/loss" in row]


@pytest.mark.slow
def test_pipeline_on_real_text(qed: Callable[..., Any], gsm8k: Path, tmp_path: Path) -> None:
    """Loss falls, rollouts are graded, truncation is counted, checkpoints load, and nothing is dropped in silence."""
    run = tmp_path / "run"
    done = qed(
        *("pipeline", "--model", "new:small", "--tasks", gsm8k, "--out", run, "--json", *SMALL),
        *("--sft.learner.steps", 12, "--sft.learner.lr", "2e-3", "--sft.learner.batch_size", 8),
        # Without a right answer every group is equal; the entropy bonus gives the step its gradient all the same.
        *("--rl.learner.steps", 2, "--rl.learner.lr", "1e-4", "--rl.algorithm.entropy", "0.01"),
    )
    assert done.code == 0, done.err
    sft, rl = rows_of(run, "sft"), rows_of(run, "grpo")
    assert [row["step"] for row in sft + rl] == list(range(1, 15))
    assert sft[-1]["train/loss"] < 0.8 * sft[0]["train/loss"]
    assert [step for step, _ in read_evaluations(run)] == [0, 12, 14]
    rollouts = read_lines(run / "rollouts" / "step_000013.jsonl.zst")
    assert len(rollouts) == 16
    for row in rollouts:
        assert row["prompt"].endswith("Assistant: <think>")
        assert row["text"].startswith("<think>")
        assert row["reward"] in (0.0, 1.0)
        assert len(row["tokens"]) == len(row["logps"]) == row["n_tokens"] <= 24
        assert (row["stop_reason"] == "length") == (row["n_tokens"] == 24) or row["stop_reason"] == "stop"
        assert row["source"] == "policy"
        assert row["version"] == 12
    truncated = sum(row["stop_reason"] == "length" for row in rollouts) / len(rollouts)
    assert rl[0]["length/truncated_frac"] == pytest.approx(truncated)
    assert rl[0]["groups/zero_std"] == rl[0]["groups/all_wrong"] + rl[0]["groups/all_right"]
    model = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step_000012" / "hf")
    tokenizer = AutoTokenizer.from_pretrained(run / "final" / "hf")
    assert len(tokenizer) <= model.get_input_embeddings().num_embeddings
    for row in rollouts[:3]:
        assert tokenizer.decode(row["tokens"], skip_special_tokens=True) in row["text"] or "</answer>" in row["text"]
    for name in ("settings.yaml", "settings.origin.json", "env.json", "command.txt", "README.md"):
        assert (run / name).stat().st_size > 0, name


def test_phases_one_by_one_and_a_foreign_model(qed: Callable[..., Any], gsm8k: Path, tmp_path: Path) -> None:
    """`qed sft` on a Llama folder, then `qed grpo` on its result; the settings file repeats the run bit by bit."""
    qed("sft", "--model", "new:small", "--tasks", gsm8k, "--out", tmp_path / "seed", "--steps", 0, *SMALL)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "seed" / "final" / "hf")
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 7,  # padded, as real ones are
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=[tokenizer.eos_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    common = ["--tasks", gsm8k, *SMALL, "--json"]
    done = qed("sft", "--model", tmp_path / "llama", "--out", tmp_path / "sft", "--steps", 2, *common)
    assert done.code == 0, done.err
    start = tmp_path / "sft" / "checkpoints" / "step_000002" / "hf"
    arguments = ["dr-grpo", "--model", start, "--steps", 1, "--algorithm.entropy", 0.01, *common]
    done = qed(*arguments, "--out", tmp_path / "one")
    assert done.code == 0, done.err
    again = qed("dr-grpo", tmp_path / "one" / "settings.yaml", "--out", tmp_path / "other")
    assert again.code == 0, again.err
    weights = [(tmp_path / name / "final" / "hf" / "model.safetensors").read_bytes() for name in ("one", "other")]
    assert weights[0] == weights[1]


def test_no_signal_is_said_with_its_own_exit_code(qed: Callable[..., Any], gsm8k: Path, tmp_path: Path) -> None:
    """A fresh model never answers right, so plain GRPO trains nothing: exit 5, and the run can be looked at."""
    done = qed("grpo", "--model", "new:small", "--tasks", gsm8k, "--steps", 2, "--out", tmp_path / "run", *SMALL)
    assert done.code == 5
    assert "No step of grpo had a gradient" in done.err
    assert len(list((tmp_path / "run" / "rollouts").glob("*.jsonl.zst"))) == 2
    for name in ("final/hf/config.json", "report.html", "README.md"):
        assert (tmp_path / "run" / name).is_file()


@pytest.mark.slow
def test_the_plain_command_teaches_a_fresh_model(qed: Callable[..., Any], gsm8k: Path, tmp_path: Path) -> None:
    """Nothing but model, data and steps: SFT's loss falls at the defaults of a fresh model, and RL without signal is
    said."""
    run = tmp_path / "run"
    done = qed(
        *("pipeline", "--model", "new:small", "--tasks", gsm8k, "--steps", 4, "--out", run),
        *("--sampling.max_tokens", 16, "--evaluation.problems", 4, "--sft.learner.batch_size", 4),
    )
    assert done.code == 0, done.err
    losses = [row["train/loss"] for row in rows_of(run, "sft")]
    assert losses[-1] < losses[0] - 0.1
    assert "Warning: No step of grpo had a gradient" in done.out
