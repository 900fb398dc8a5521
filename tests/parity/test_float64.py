"""In float64 nothing is rounded to float32: sampler and learner agree to the last bits, and a run resumes exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cutting import SMALL, assert_same, by_chance, cut, run_small, write_data
from making import make_model
from safetensors.torch import load_file

from qed.config.settings import ModelSettings
from qed.errors import UsageError
from qed.models.load import prepare_model
from qed.models.precision import compute_in
from qed.rollout.sampler_check import check_sampler
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.sampler import NativeSampler
from qed.training.scoring import score_with

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
FAMILIES = ("Qwen2", "Qwen3", "Llama", "Gemma2", "Olmo2")
PROMPTS = [tuple(random.Random(length).randrange(3, 97) for _ in range(length)) for length in (5, 21, 40)]


@pytest.mark.parametrize("sampler", [NativeSampler, HFSampler])
@pytest.mark.parametrize("name", FAMILIES)
def test_sampler_and_learner_agree_to_the_last_bits(name: str, sampler: type[HFSampler]) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SHAPE)
    model = getattr(transformers, f"{name}ForCausalLM")(config).double().eval()
    check = check_sampler(
        sampler(model, None, (1,), 8, torch.float64),
        score_with(model, 0.7),
        [PROMPTS[:2], PROMPTS[2:]],
        Sampling(0.7, 12),
        torch.float64,
        (0, "float64"),
    )
    assert check.tokens > 50
    assert check.rounding == "float64"
    assert check.passed
    assert check.largest < 1e-12


def test_norms_and_rotations_are_computed_in_float64() -> None:
    ids = torch.tensor([PROMPTS[1]])
    model = make_model(vocab_size=97)
    # Weights that float32 cannot hold: a float32 step anywhere would hide a change this small.
    changed = make_model(vocab_size=97)
    with torch.no_grad():
        changed.model.embed_tokens.weight *= 1 + 1e-11
    with torch.no_grad(), compute_in("cpu", torch.float64):
        one, other = model(ids).logits, changed(ids).logits
    with torch.no_grad():
        rounded = model(ids).logits
    assert 0 < float((one - other).abs().max()) < 1e-9
    assert float((one - rounded).abs().max()) > 1e-9  # as transformers computes it


@pytest.mark.parametrize("checkpointing", [False, True])
def test_checkpointing_recomputes_in_float64(checkpointing: bool) -> None:
    model, ids = make_model(vocab_size=97), torch.tensor([PROMPTS[1]])
    settings = ModelSettings(precision="float64", gradient_checkpointing=checkpointing)
    prepare_model(model, settings, torch.device("cpu"))
    with compute_in("cpu", torch.float64):
        loss = model(ids, labels=ids).loss
    loss.backward()
    plain = make_model(vocab_size=97)
    with compute_in("cpu", torch.float64):
        plain(ids, labels=ids).loss.backward()
    for found, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-12, atol=1e-14)


def test_mps_has_no_float64() -> None:
    with pytest.raises(UsageError, match="is not supported on mps"):
        prepare_model(make_model(), ModelSettings(precision="float64"), torch.device("mps"))
    with pytest.raises(UsageError, match="quantization=none"):
        ModelSettings("folder", precision="float64", quantization="nf4", lora_rank=4)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_problems: None
) -> Callable[[Sequence[object], Path], None]:
    """Makes a small run of GRPO with a KL term in float64."""
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)
    problems, _ = write_data(tmp_path)
    common = ["grpo", "--tasks", problems, *SMALL, "--sampling.problems_per_step", 3, "--sampling.group_size", 4]
    common += ["--model.precision", "float64", "--algorithm.kl", 0.1, "--run.preflight", "true"]
    return lambda more, out: run_small([*common, *more, "--out", out])


@pytest.mark.parametrize("more", [(), pytest.param(("--model.lora_rank", 4), marks=pytest.mark.slow)])
def test_a_run_in_float64_resumes_exactly(
    tmp_path: Path, run: Callable[[Sequence[object], Path], None], more: tuple[object, ...]
) -> None:
    whole = tmp_path / "whole"
    run(more, whole)
    part = cut(whole, 2, tmp_path / "cut")
    run((*more, "--resume"), part)
    assert_same(whole, part)
    last = whole / "final"
    hf, state = load_file(last / "hf" / "model.safetensors"), load_file(last / "state.safetensors")
    assert {tensor.dtype for tensor in hf.values()} == {torch.float32}
    assert {state[name].dtype for name in state if name.endswith("exp_avg")} == {torch.float64}
    exact = load_file(last / ("adapter/adapter_model.safetensors" if more else "weights.safetensors"))
    assert {tensor.dtype for tensor in exact.values()} == {torch.float64}
    assert any(not torch.equal(tensor, tensor.float().double()) for tensor in exact.values())
