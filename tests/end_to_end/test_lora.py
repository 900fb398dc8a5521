"""Adapters change nothing at first, train alone, can be switched off, and are saved as peft and as merged weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from making import VOCABULARY, make_model, make_rollout
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from qed import lora
from qed.algorithms.grpo import Grpo
from qed.errors import ModelError, UsageError
from qed.learner import Learner
from qed.runs import evaluations, read_lines
from qed.settings import LearnerSettings, ModelSettings

SETTINGS = ModelSettings(lora_rank=4)
IDS = torch.arange(14).reshape(2, 7) % VOCABULARY


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def trained() -> nn.Module:
    """A model whose adapters have learned something."""
    model = lora.add(make_model(), SETTINGS, 0)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def test_fresh_adapters_change_nothing_and_follow_the_seed() -> None:
    model = lora.add(make_model(), SETTINGS, 0)
    assert torch.equal(logits(model), logits(make_model()))
    assert {name.split(".")[-3] for name, p in model.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}
    same, other = (lora.add(make_model(), SETTINGS, seed).state_dict() for seed in (0, 1))
    assert all(torch.equal(tensor, same[name]) for name, tensor in model.state_dict().items())
    assert any(not torch.equal(tensor, other[name]) for name, tensor in model.state_dict().items())


def test_switched_off_a_model_is_its_own_reference() -> None:
    model, plain = trained(), make_model()
    assert (logits(model) - logits(plain)).abs().max() > 0.1
    with lora.switched_off(model):
        assert torch.equal(logits(model), logits(plain))
    assert (logits(model) - logits(plain)).abs().max() > 0.1
    assert all(p.requires_grad for name, p in model.named_parameters() if ".lora_" in name)
    # The learner scores the reference so, and one with a second model gives the same log-probs.
    rollouts = [make_rollout(random.Random(seed)) for seed in range(3)]
    Learner(model, Grpo.from_settings(kl=0.1), LearnerSettings(), reference=lora.Without(model)).score(
        rollouts, old=False
    )
    alone = [rollout.ref_logps for rollout in rollouts]
    Learner(model, Grpo.from_settings(kl=0.1), LearnerSettings(), reference=plain).score(rollouts, old=False)
    assert alone == [rollout.ref_logps for rollout in rollouts]


def test_only_adapters_move() -> None:
    model = trained()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    Learner(model, Grpo(), LearnerSettings(lr=0.1)).update([make_rollout(random.Random(0), advantage=1.0)], 0)
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved
    assert all(".lora_" in name for name in moved)


def test_what_is_saved_is_read_by_transformers_by_peft_and_by_ourselves(tmp_path: Path) -> None:
    model = trained()
    model.save_pretrained(tmp_path / "hf", state_dict=lora.merged(model))
    lora.save(model, tmp_path / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float64)
    with_peft = PeftModel.from_pretrained(make_model(), tmp_path / "adapter")
    again = lora.add(make_model(), SETTINGS, 5)
    lora.load(again, tmp_path / "adapter")
    for other in (merged, with_peft, again):
        torch.testing.assert_close(logits(other), logits(model), rtol=1e-9, atol=1e-9)
    with pytest.raises(ModelError, match="do not fit"):
        lora.load(lora.add(make_model(), ModelSettings(lora_rank=2), 0), tmp_path / "adapter")
    with pytest.raises(ModelError, match="no adapters"):
        lora.load(again, tmp_path)


def test_frozen_layers_are_held_as_they_are_computed() -> None:
    """In bfloat16 the layers under adapters are rounded once; what is saved is float32, adapters added."""
    plain = make_model(dtype=torch.float32)
    model = lora.add(make_model(dtype=torch.float32), replace(SETTINGS, precision="bfloat16"), 0)
    widths = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert widths["model.layers.0.self_attn.q_proj.base_layer.weight"] == torch.bfloat16
    assert {widths[name] for name in widths if "lora_" in name or "norm" in name or "embed" in name} == {torch.float32}
    learner = Learner(model, Grpo(), LearnerSettings(lr=0.1), precision=torch.bfloat16)
    assert learner.packing
    learner.update([make_rollout(random.Random(0), advantage=1.0)], 0)
    saved, before = lora.merged(model), plain.state_dict()
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    layer = model.model.layers[0].self_attn.q_proj
    name = "model.layers.0.self_attn.q_proj.weight"
    expected = before[name].bfloat16().float() + layer.get_delta_weight("default").float()
    torch.testing.assert_close(saved[name], expected)
    assert (saved[name] - before[name].bfloat16().float()).abs().max() > 1e-3


def test_a_layer_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="Did you mean 'q_proj'"):
        lora.add(make_model(), ModelSettings(lora_rank=2, lora_targets=("q_pro",)), 0)


@pytest.mark.slow
def test_a_run_with_adapters_is_resumed_and_evaluated_as_it_was(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Two steps, then two more from the checkpoint, are four steps in one go; and the merged weights answer alike."""
    small = ["--model", "new:tiny", "--model.lora_rank", 4, "--sampling.max_tokens", 12, "--evaluation.problems", 4]
    small += ["--learner.batch_size", 8, "--learner.lr", 0.01, "--run.save_every", 2, "--run.threads", 1]
    assert qed("sft", *small, "--steps", 4, "--out", tmp_path / "whole").code == 0
    assert qed("sft", *small, "--steps", 4, "--out", tmp_path / "parts", "--run.save_every", 2).code == 0
    for name in ("checkpoints/step_000004", "final", "checkpoints/LATEST"):
        path = tmp_path / "parts" / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            for file in sorted(path.rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
            path.rmdir()
    assert qed("sft", *small, "--steps", 4, "--out", tmp_path / "parts", "--resume").code == 0
    whole, parts = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts"))
    assert [row.get("train/loss") for row in whole] == [row.get("train/loss") for row in parts]
    files = [tmp_path / name / "final" / "adapter" / lora.WEIGHTS for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert [step for step, _ in evaluations(tmp_path / "parts")] == [0, 4]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "final" / "hf")
    assert not any(".lora_" in name or "base_layer" in name for name in loaded.state_dict())
