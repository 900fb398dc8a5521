"""Adapters change nothing at first, train alone, can be switched off, and are saved as peft and as merged weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from making import VOCABULARY, make_model, make_rollout
from peft import PeftModel
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from qed.algorithms.grpo import Grpo
from qed.algorithms.sft import Sft
from qed.config.phases import Settings
from qed.config.sampling_settings import EvaluationSettings, SamplingSettings
from qed.config.settings import LearnerSettings, ModelSettings, RunSettings
from qed.errors import ModelError, UsageError
from qed.loops.train import train
from qed.models import lora
from qed.models.load import build_model
from qed.runs.run import Launch, read_evaluations, read_lines
from qed.sampling.base import Sampling
from qed.sampling.native.sampler import make
from qed.training.learner import Learner

SETTINGS = ModelSettings(lora_rank=4)
IDS = torch.arange(14).reshape(2, 7) % VOCABULARY


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def trained() -> nn.Module:
    """A model whose adapters have learned something."""
    model = lora.add_adapters(make_model(), SETTINGS, 0)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def test_fresh_adapters_change_nothing_and_follow_the_seed() -> None:
    model = lora.add_adapters(make_model(), SETTINGS, 0)
    assert torch.equal(logits(model), logits(make_model()))
    assert {name.split(".")[-3] for name, p in model.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}
    same, other = (lora.add_adapters(make_model(), SETTINGS, seed).state_dict() for seed in (0, 1))
    assert all(torch.equal(tensor, same[name]) for name, tensor in model.state_dict().items())
    assert any(not torch.equal(tensor, other[name]) for name, tensor in model.state_dict().items())


def test_switched_off_a_model_is_its_own_reference() -> None:
    model, plain = trained(), make_model()
    assert (logits(model) - logits(plain)).abs().max() > 0.1
    with lora.disable_adapters(model):
        assert torch.equal(logits(model), logits(plain))
    assert (logits(model) - logits(plain)).abs().max() > 0.1
    assert all(p.requires_grad for name, p in model.named_parameters() if ".lora_" in name)
    # The learner scores the reference so, and one with a second model gives the same log-probs.
    rollouts = [make_rollout(random.Random(seed)) for seed in range(3)]
    Learner(model, Grpo(kl=0.1), LearnerSettings(), reference=lora.AdapterDisabled(model)).score(rollouts, old=False)
    alone = [rollout.ref_logps for rollout in rollouts]
    Learner(model, Grpo(kl=0.1), LearnerSettings(), reference=plain).score(rollouts, old=False)
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
    model.save_pretrained(tmp_path / "hf", state_dict=lora.merge_adapters(model))
    lora.save_adapters(model, tmp_path / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float64)
    with_peft = PeftModel.from_pretrained(make_model(), tmp_path / "adapter")
    again = lora.add_adapters(make_model(), SETTINGS, 5)
    lora.load_adapters(again, tmp_path / "adapter")
    for other in (merged, with_peft, again):
        torch.testing.assert_close(logits(other), logits(model), rtol=1e-9, atol=1e-9)
    with pytest.raises(ModelError, match="do not fit"):
        lora.load_adapters(lora.add_adapters(make_model(), ModelSettings(lora_rank=2), 0), tmp_path / "adapter")
    with pytest.raises(ModelError, match="no adapters"):
        lora.load_adapters(again, tmp_path)


def test_frozen_layers_are_held_as_they_are_computed() -> None:
    """In bfloat16 the layers under adapters are rounded once; what is saved is float32, adapters added."""
    plain = make_model(dtype=torch.float32)
    model = lora.add_adapters(make_model(dtype=torch.float32), replace(SETTINGS, precision="bfloat16"), 0)
    widths = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert widths["model.layers.0.self_attn.q_proj.base_layer.weight"] == torch.bfloat16
    assert {widths[name] for name in widths if "lora_" in name or "norm" in name or "embed" in name} == {torch.float32}
    learner = Learner(model, Grpo(), LearnerSettings(lr=0.1), precision=torch.bfloat16)
    assert learner.packing
    learner.update([make_rollout(random.Random(0), advantage=1.0)], 0)
    saved, before = lora.merge_adapters(model), plain.state_dict()
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    layer = model.model.layers[0].self_attn.q_proj
    name = "model.layers.0.self_attn.q_proj.weight"
    expected = before[name].bfloat16().float() + layer.get_delta_weight("default").float()
    torch.testing.assert_close(saved[name], expected)
    assert (saved[name] - before[name].bfloat16().float()).abs().max() > 1e-3


MIXTURES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 16},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
}


def mixture(name: str, **changes: Any) -> Any:
    """A small random mixture of experts."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"vocab_size": VOCABULARY, "num_key_value_heads": 2, "max_position_embeddings": 64, "eos_token_id": 1}
    kind = getattr(transformers, f"{name}ForCausalLM")
    return kind(kind.config_class(**{**shape, **MIXTURES[name], "initializer_range": 0.3, **changes})).eval()


@pytest.mark.parametrize("name", list(MIXTURES))
def test_adapters_of_experts_are_trained_merged_and_read_by_others(name: str, tmp_path: Path) -> None:
    """The experts are adapted where they are named; merged weights and peft compute what the adapted model computes."""
    settings = ModelSettings(lora_rank=4, lora_targets=("q_proj", "experts"))
    model, plain = lora.add_adapters(mixture(name), settings, 0), mixture(name)
    assert lora.compute_unadapted_share(model) == 0
    assert torch.equal(logits(model), logits(plain))
    frozen = {key: p.detach().clone() for key, p in model.named_parameters() if not p.requires_grad}
    learner = Learner(model, Grpo(), LearnerSettings(lr=0.3))
    for step in range(2):  # in the first the gradient of A is 0
        learner.update([make_rollout(random.Random(seed), advantage=1.0) for seed in range(3)], step)
    assert all(torch.equal(parameter, frozen[key]) for key, parameter in model.named_parameters() if key in frozen)
    for key, parameter in model.named_parameters():
        if ".experts." in key and "lora_B" in key:
            assert parameter.any()
    assert (logits(model) - logits(plain)).abs().max() > 0.05
    with lora.disable_adapters(model):
        assert torch.equal(logits(model), logits(plain))
    plain.save_pretrained(tmp_path / "hf", state_dict=lora.merge_adapters(model))
    lora.save_adapters(model, tmp_path / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    with_peft = PeftModel.from_pretrained(mixture(name), tmp_path / "adapter")
    again = lora.add_adapters(mixture(name), settings, 5)
    lora.load_adapters(again, tmp_path / "adapter")
    for other in (merged, with_peft, again):
        torch.testing.assert_close(logits(other), logits(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", list(MIXTURES))
def test_experts_without_adapters_are_counted(name: str) -> None:
    """By default they stay as they are, which the run is told."""
    model = lora.add_adapters(mixture(name), SETTINGS, 0)
    assert not any(".experts." in key for key, parameter in model.named_parameters() if parameter.requires_grad)
    plain = mixture(name)
    stacks = sum(p.numel() for key, p in plain.named_parameters() if p.ndim == 3)
    assert lora.compute_unadapted_share(model) == stacks / sum(p.numel() for p in plain.parameters()) > 0.3
    assert lora.compute_unadapted_share(lora.add_adapters(make_model(), SETTINGS, 0)) == 0


def test_a_run_says_that_experts_are_not_adapted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, tokenizer = build_model("new:tiny", ["1 + 1 = 2"], 0)
    tokenizer.save_pretrained(tmp_path / "model")
    mixture("Mixtral", vocab_size=len(tokenizer), max_position_embeddings=512).save_pretrained(tmp_path / "model")
    settings = Settings(
        method="sft",
        algorithm=Sft(),
        model=ModelSettings(name=str(tmp_path / "model"), lora_rank=2),
        learner=LearnerSettings(steps=1, batch_size=2),
        sampling=SamplingSettings(max_tokens=8),
        evaluation=EvaluationSettings(problems=1),
        run=RunSettings(out=str(tmp_path / "run")),
    )
    train(settings, Launch())
    (event,) = [one for one in read_lines(tmp_path / "run" / "events.jsonl") if one["event"] == "experts_not_adapted"]
    assert 0 < event["share"] < 1
    assert "add experts to model.lora_targets" in " ".join(capsys.readouterr().out.split())


class Casts(TorchDispatchMode):
    """Notes which of some tensors are given another precision."""

    def __init__(self, tensors: dict[int, str]) -> None:
        super().__init__()
        self.tensors, self.found = tensors, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in {"aten::_to_copy", "aten::copy_"}:
            self.found |= {self.tensors[one.data_ptr()] for one in args if torch.is_tensor(one) and self.known(one)}
        return func(*args, **(kwargs or {}))

    def known(self, tensor: Tensor) -> bool:
        return tensor.dtype == torch.float32 and tensor.data_ptr() in self.tensors


@pytest.mark.parametrize("name", ["Qwen2", *MIXTURES])
@pytest.mark.parametrize("targets", [(), ("q_proj", "experts")])
def test_in_bfloat16_no_frozen_weight_is_rounded_at_each_step(name: str, targets: tuple[str, ...]) -> None:
    """Experts, routers and the output layer, tied or not, are held as they are computed, in training and sampling."""
    if name == "Qwen2" and targets:
        targets = ("q_proj",)
    plain = make_model(dtype=torch.float32) if name == "Qwen2" else mixture(name)
    model = lora.add_adapters(plain, replace(SETTINGS, precision="bfloat16", lora_targets=targets), 0)
    learner = Learner(model, Grpo(), LearnerSettings(lr=0.1), precision=torch.bfloat16)
    sampler = make(model, None, (1,), 8, torch.bfloat16)
    frozen = {p.data_ptr(): key for key, p in model.named_parameters() if not p.requires_grad and p.ndim > 1}
    with Casts(frozen) as casts:
        stats = learner.update([make_rollout(random.Random(0), advantage=1.0)], 0)
        sampler.generate([(3, 4)], [[5, 6]], Sampling(1.0, 3))
    assert stats["optim/grad_norm"] > 0
    assert casts.found == set()
    saved, before = lora.merge_adapters(model), (make_model(dtype=torch.float32) if name == "Qwen2" else mixture(name))
    assert saved.keys() == before.state_dict().keys()
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    if name == "Qwen2":
        assert torch.equal(saved["lm_head.weight"], before.lm_head.weight)


def test_only_the_text_part_of_a_composite_model_is_adapted() -> None:
    """The part for images has layers of the same names, which no text would train."""
    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY}
    image = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text, vision_config={**image, "image_size": 16, "patch_size": 8}, mm_tokens_per_image=4
    )
    model = lora.add_adapters(transformers.Gemma3ForConditionalGeneration(config), SETTINGS, 0)
    trained = {name.partition(".layers.")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"model.language_model"}


def test_a_model_without_linear_layers_is_named() -> None:
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(UsageError, match="has no linear layers that adapters"):
        lora.add_adapters(model, SETTINGS, 0)


def test_a_layer_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="Did you mean 'q_proj'"):
        lora.add_adapters(make_model(), ModelSettings(lora_rank=2, lora_targets=("q_pro",)), 0)


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
    assert [step for step, _ in read_evaluations(tmp_path / "parts")] == [0, 4]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "final" / "hf")
    assert not any(".lora_" in name or "base_layer" in name for name in loaded.state_dict())
