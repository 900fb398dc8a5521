"""A reward model from its pairs to a policy that it trains, a critic that starts from it, and its export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cutting import SHARED, write_data
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from qed.runs.run import read_lines
from qed.training.best import PREFERRED


def test_a_reward_model_ranks_pairs_rewards_a_policy_and_starts_a_critic(
    qed: Callable[..., Any], tmp_path: Path
) -> None:
    problems, pairs = write_data(tmp_path)
    model = tmp_path / "model"
    done = qed(
        *("reward-model", "--tasks", pairs, *SHARED, "--steps", 2, "--lr", 1e-3, "--data.validation_split", 0.3),
        *("--learner.batch_size", 8, "--out", model),
    )
    assert done.code == 0, done.err
    ranked = [row for row in read_lines(model / "metrics.jsonl") if PREFERRED in row]
    assert [row["step"] for row in ranked] == [0, 2]
    assert ranked[0][PREFERRED] == 0, "scores of a new head are equal, and none is ranked"
    assert ranked[1][f"{PREFERRED}/ci_lo"] <= ranked[1][PREFERRED] <= ranked[1][f"{PREFERRED}/ci_hi"]
    config = json.loads((model / "final/hf/config.json").read_text(encoding="utf-8"))
    assert config["score_deviation"] > 0
    card = (model / "README.md").read_text(encoding="utf-8")
    assert "AutoModelForSequenceClassification" in card
    assert "of the held-out pairs right" in card
    exported = qed("export", model, "--out", tmp_path / "exported")
    assert exported.code == 0, exported.err
    small = ("--tasks", problems, *SHARED, "--steps", 1, "--sampling.problems_per_step", 3, "--sampling.group_size", 2)
    by_model = qed("grpo", *small, "--reward", f"model:{tmp_path / 'exported'}", "--out", tmp_path / "by-model")
    assert by_model.code == 0, by_model.err
    (row,) = (row for row in read_lines(tmp_path / "by-model/metrics.jsonl") if "train/loss" in row)
    assert row["reward/model/mean"] == row["reward/mean"]
    assert row["accuracy"] == 0, "the grader's verdict stands beside the score"
    start = ("--model", model / "final/hf")
    refused = qed("grpo", *small, *start, "--out", tmp_path / "refused")
    assert refused.code != 0
    assert "scores answers but cannot generate them" in refused.err
    # A new policy has a tokenizer of its own texts; one of the same family begins from the critic.
    ppo = ("ppo", *small, "--algorithm.critic.start")
    other = qed(*ppo, tmp_path / "exported", "--out", tmp_path / "other")
    assert other.code == 2
    assert "another vocabulary" in other.err
    first = qed("ppo", *small, "--out", tmp_path / "ppo")
    assert first.code == 0, first.err
    again = qed(*ppo, tmp_path / "ppo/final/critic", "--out", tmp_path / "again")
    assert again.code == 0, again.err


def test_the_adapter_of_a_reward_model_has_its_head_and_is_no_policy(qed: Callable[..., Any], tmp_path: Path) -> None:
    problems, pairs = write_data(tmp_path)
    base = tmp_path / "base"
    assert qed("sft", "--tasks", problems, *SHARED, "--steps", 1, "--out", base).code == 0
    lora = ("--model", base / "final/hf", "--model.lora_rank", 2, "--lr", 1e-2, "--steps", 2)
    done = qed("reward-model", "--tasks", pairs, *SHARED, *lora, "--out", tmp_path / "scores")
    assert done.code == 0, done.err
    adapter = tmp_path / "scores/final/adapter"
    empty = AutoModelForSequenceClassification.from_pretrained(base / "final/hf", num_labels=1)
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "scores/final/hf")
    ids = torch.tensor([[11, 12, 13, 14, 15]])
    with torch.no_grad():
        expected = merged(ids).logits
        assert expected.abs() > 0
        torch.testing.assert_close(PeftModel.from_pretrained(empty, adapter)(ids).logits, expected)
    refused = qed("grpo", "--tasks", problems, *SHARED, "--model", adapter, "--steps", 1, "--out", tmp_path / "refused")
    assert (refused.code, "it scores answers but cannot generate them" in refused.err) == (3, True), refused.err
    exported = qed("export", tmp_path / "scores", "--out", tmp_path / "exported")
    assert exported.code == 0, exported.err
    assert "score_deviation" in json.loads((tmp_path / "exported/config.json").read_text(encoding="utf-8"))
