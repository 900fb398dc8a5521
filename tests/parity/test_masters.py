"""bfloat16 weights with float32 masters train as float32 weights do, and without masters they do not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
import transformers
from cutting import SMALL, assert_same, by_chance, cut, run_small, write_data
from making import make_model, make_rollout
from safetensors.torch import load_file
from torch import nn

from qed.algorithms.grpo import Grpo
from qed.algorithms.sft import Sft
from qed.config.settings import LearnerSettings, ModelSettings
from qed.errors import UsageError
from qed.models.precision import cast_weights, compute_in
from qed.rollout.sampler_check import check_sampler
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.sampler import NativeSampler
from qed.training.learner import Learner
from qed.training.masters import MASTER
from qed.training.optim import (
    load_optimizer_tensors,
    make_optimizer,
    read_optimizer_tensors,
    reset_optimizer,
)
from qed.training.scoring import score_with

KINDS = ["adamw", "adamw_offload"]


def network() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(9, 11), nn.LayerNorm(11), nn.Linear(11, 5))
    cast_weights(model, torch.bfloat16)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, lr: float = 1e-4) -> None:
    source = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=source)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_masters_take_the_steps_of_float32(kind: str) -> None:
    settings = LearnerSettings(optimizer=kind, lr=1e-4, weight_decay=0.1)
    model, wide = network(), network().float()
    optimizer, plain = make_optimizer(model, settings), make_optimizer(wide, settings)
    for number in range(30):
        step(model, optimizer, number)
        step(wide, plain, number)
    tensors = read_optimizer_tensors(optimizer, model)
    for name, weight in wide.named_parameters():
        torch.testing.assert_close(tensors[f"{name}/{MASTER}"], weight.detach(), rtol=1e-6, atol=1e-7)
        assert torch.equal(model.get_parameter(name), tensors[f"{name}/{MASTER}"].bfloat16())  # to the nearest
        assert tensors[f"{name}/exp_avg"].dtype == torch.float32


def test_small_updates_do_not_vanish() -> None:
    model = nn.Linear(1, 1, bias=False)
    cast_weights(model, torch.bfloat16)
    nn.init.constant_(model.weight, 1.0)
    optimizer = make_optimizer(model, LearnerSettings(lr=1e-4))
    for _ in range(100):  # 1e-4 is a fortieth of the distance to the next smaller number
        model.weight.grad = torch.ones(1, 1)
        optimizer.step()
    assert model.weight.item() == pytest.approx(0.99, abs=2**-9)


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("then", KINDS)
def test_masters_go_through_a_checkpoint_bit_by_bit(first: str, then: str) -> None:
    whole, model = network(), network()
    optimizers = [make_optimizer(each, LearnerSettings(optimizer=first)) for each in (whole, model)]
    for number in range(5):
        for each, optimizer in zip((whole, model), optimizers, strict=True):
            step(each, optimizer, number)
    saved = {name: tensor.clone() for name, tensor in read_optimizer_tensors(optimizers[1], model).items()}
    again = network()
    again.load_state_dict(model.state_dict())
    optimizer = make_optimizer(again, LearnerSettings(optimizer=then))
    load_optimizer_tensors(optimizer, again, saved)
    step(whole, optimizers[0], 5)
    step(again, optimizer, 5)
    masters = [read_optimizer_tensors(o, m) for o, m in ((optimizers[0], whole), (optimizer, again))]
    assert masters[0].keys() == masters[1].keys()
    for name, tensor in masters[0].items():
        assert torch.equal(tensor, masters[1][name]) or first != then, name
        torch.testing.assert_close(tensor, masters[1][name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_begins_from_the_weights(kind: str) -> None:
    model = network()
    begin = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = make_optimizer(model, LearnerSettings(optimizer=kind))
    ends = []
    for _ in range(2):
        for number in range(3):
            step(model, optimizer, number, lr=1e-2)
        ends.append(read_optimizer_tensors(optimizer, model))
        ends[-1] = {name: tensor.clone() for name, tensor in ends[-1].items()}
        model.load_state_dict(begin)
        reset_optimizer(optimizer)
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_gradients_are_accumulated_in_float32() -> None:
    """The sum over many micro-batches is that of one, to the rounding of its parts; tied embeddings among them."""
    source = random.Random(0)
    rollouts = [make_rollout(source, advantage) for advantage in (1.0, -1.0, 0.5, 2.0) * 8]
    gradients = []
    for dtype, budget in ((torch.float32, 1 << 20), (torch.bfloat16, 1 << 20), (torch.bfloat16, 1)):
        model = make_model(dtype=torch.bfloat16)
        cast_weights(model, dtype)
        learner = Learner(
            model, Grpo(), LearnerSettings(tokens_per_microbatch=budget), length=9, precision=torch.bfloat16
        )
        learner.accumulate(rollouts)
        assert {parameter.grad.dtype for parameter in learner.parameters} == {torch.float32}
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in learner.parameters]))
    exact, whole, many = gradients
    assert float((many - whole).norm() / whole.norm()) < 0.01
    assert float((whole - exact).norm() / exact.norm()) < 0.1  # the states between the layers are in bfloat16 too


def train(kind: str, steps: int) -> list[float]:
    """The losses of SFT on a few sequences: of float32 weights, bfloat16 ones with masters, or without them."""
    source = random.Random(1)
    rows = [make_rollout(source, 1.0, longest=12) for _ in range(12)]
    model = make_model(dtype=torch.float32, hidden_size=32)
    cast_weights(model, torch.bfloat16)
    if kind == "float32":
        cast_weights(model, torch.float32)
    learner = Learner(model, Sft(), LearnerSettings(lr=2e-4, steps=steps), length=12, precision=torch.bfloat16)
    if kind == "without":
        for parameter in model.parameters():
            parameter.grad_dtype = torch.bfloat16
        learner.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0, fused=True)
    return [learner.update(rows, number)["train/loss"] for number in range(steps)]


def test_training_is_that_of_float32_within_noise() -> None:
    losses = {kind: train(kind, 50) for kind in ("float32", "masters", "without")}
    fall = losses["float32"][0] - losses["float32"][-1]
    assert fall > 1
    assert abs(losses["masters"][-1] - losses["float32"][-1]) < 0.02 * fall
    assert losses["without"][-1] - losses["float32"][-1] > 0.3 * fall


def test_computation_above_the_weights_is_refused() -> None:
    for name in ("dtype", "reference_dtype"):
        with pytest.raises(UsageError, match=rf"model.{name} bfloat16 needs model.precision=bfloat16"):
            ModelSettings(**{name: "bfloat16"})


QUICK = ("on the host",)
VARIANTS: dict[str, tuple[object, ...]] = {
    "masters": (),
    "on the host": ("--learner.optimizer", "adamw_offload", "--learner.offload_for_sampling", "true"),
    "lora": ("--model.lora_rank", 4),
    "reference on the host": ("--algorithm.kl", 0.1, "--model.reference_offload", "true"),
    "float32 reference": (
        *("--algorithm.kl", 0.1, "--model.reference_dtype", "float32"),
        *("--algorithm.reference_every", 1, "--algorithm.reference_mix", 0.5),
    ),
}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_a_run_with_bfloat16_weights_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_problems: None, name: str
) -> None:
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)
    problems, _ = write_data(tmp_path)
    common = ["grpo", "--tasks", problems, *SMALL, "--sampling.problems_per_step", 3, "--sampling.group_size", 4]
    common += ["--model.precision", "bfloat16", "--model.dtype", "bfloat16", "--run.preflight", "true"]
    whole = tmp_path / "whole"
    run_small([*common, *VARIANTS[name], "--out", whole])
    part = cut(whole, 2, tmp_path / "cut")
    run_small([*common, *VARIANTS[name], "--resume", "--out", part])
    assert_same(whole, part)
    state = load_file(whole / "final" / "state.safetensors")
    hf = load_file(whole / "final" / "hf" / "model.safetensors")
    assert {tensor.dtype for tensor in hf.values()} == {torch.float32 if name == "lora" else torch.bfloat16}
    config = json.loads((whole / "final" / "hf" / "config.json").read_text(encoding="utf-8"))
    assert config["dtype"] == ("float32" if name == "lora" else "bfloat16")
    masters = {key.rsplit("/", 1)[0]: tensor for key, tensor in state.items() if key.endswith(f"/{MASTER}")}
    assert bool(masters) == (name != "lora")
    for key, master in masters.items():
        assert torch.equal(master.bfloat16(), hf[key])


def test_the_context_of_half_precision_is_autocast() -> None:
    with compute_in("cpu", torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
    with compute_in("cpu", torch.float32):
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("sampler", [NativeSampler, HFSampler])
@pytest.mark.parametrize("name", ["Qwen2", "Llama", "Gemma2"])
def test_samplers_read_bfloat16_weights(name: str, sampler: type[HFSampler]) -> None:
    torch.manual_seed(0)
    shape = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    config = getattr(transformers, f"{name}Config")(**shape, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    cast_weights(model, torch.bfloat16)
    prompts = [tuple(random.Random(length).randrange(3, 97) for _ in range(length)) for length in (5, 21, 40)]
    check = check_sampler(
        sampler(model, None, (1,), 8, torch.bfloat16),
        score_with(model, 0.7),
        [prompts[:2], prompts[2:]],
        Sampling(0.7, 12),
        torch.bfloat16,
        (0, "bfloat16"),
    )
    assert check.tokens > 50
    assert check.passed
    assert check.mean < 0.01
