"""On a device, what is fast computes what is plain: the same tests on the CPU, and with `-m gpu` on a CUDA device.

`benchmarks/gpu.py` runs them first. What only a CUDA device has, graphs and pinned memory, is tested in test_graphs.py
and test_optimizers.py.
"""

from __future__ import annotations

import json
import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from making import VOCABULARY, make_model, make_rollout
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Qwen2ForCausalLM

from qed.algorithms.grpo import Grpo
from qed.cli.training import run_recipe
from qed.config.resolve import resolve_settings
from qed.config.settings import LearnerSettings, ModelSettings
from qed.loops.device_defaults import ON_CUDA
from qed.models.load import build_model, load_model, prepare_model
from qed.models.lora import add_adapters
from qed.models.qlora import list_dequantized
from qed.randomness import derive_seed
from qed.runs.run import read_lines
from qed.sampling.base import Sampling
from qed.sampling.draw import draw_tokens, shape_logits
from qed.sampling.hf import HFSampler
from qed.sampling.native.decoder import LlamaDecoder
from qed.sampling.native.kv_cache import new_cache
from qed.sampling.native.sampler import NativeSampler
from qed.sampling.native.sequences import new_sequences
from qed.training import fused_logps, output_tiles
from qed.training.fused_logps import compute_linear_scores
from qed.training.learner import Learner
from qed.types import Problem, Rollout

NEEDS_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)]
BFLOAT16 = torch.bfloat16
# Head dimensions that the fused attention kernels of a device support.
SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def make_policy(device: torch.device, **changes: Any) -> Any:
    return make_model(dtype=torch.float32, **SHAPE, **changes).to(device)


def draw_prompts(count: int, length: int = 20) -> list[tuple[int, ...]]:
    source = random.Random(1)
    return [tuple(source.randrange(2, VOCABULARY) for _ in range(source.randint(9, length))) for _ in range(count)]


def draw_seeds(count: int, group: int) -> list[list[int]]:
    return [[derive_seed("device", row, one) for one in range(group)] for row in range(count)]


def sample_rollouts(sampler: HFSampler, sampling: Sampling) -> list[Rollout]:
    """Rollouts in groups of three; every one has a gradient."""
    prompts = draw_prompts(5)
    groups = sampler.generate(prompts, draw_seeds(5, 3), sampling)
    return [
        Rollout(
            Problem(str(number), "", ""),
            prompt,
            one.tokens,
            one.logps,
            "",
            one.stop_reason,
            index=index,
            advantage=1.0 - index,
            support=one.support,
        )
        for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True))
        for index, one in enumerate(group)
    ]


def compute_gradient(model: Any, rollouts: list[Rollout], precision: torch.dtype, **settings: Any) -> Tensor:
    learner = Learner(model, Grpo(), LearnerSettings(**settings), length=9, precision=precision)
    learner.accumulate(rollouts)
    gradient = torch.cat([parameter.grad.flatten() for parameter in learner.parameters if parameter.grad is not None])
    model.zero_grad(set_to_none=True)
    return gradient


def read_weights(model: Any) -> dict[str, Tensor]:
    """Copies of a model's weights, 4-bit ones dequantized."""
    return {name: source.read().detach().clone() for name, source in list_dequantized(model).items()}


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """The difference is small, relative to all of what is expected."""
    found, expected = found.detach(), expected.detach()
    assert float((found - expected).norm()) <= tolerance * float(expected.norm())


@pytest.mark.parametrize("kept", [1 << 28, 0])
@pytest.mark.parametrize("precision", [torch.float32, BFLOAT16])
def test_the_fused_output_layer(
    device: torch.device, precision: torch.dtype, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probs, entropies and both gradients in several tiles, added to a gradient that is there already."""
    monkeypatch.setattr(output_tiles, "TILE_ELEMENTS", {"cpu": 1 << 12, "other": 1 << 12})
    monkeypatch.setattr(output_tiles, "TILE_ROWS", 64)
    monkeypatch.setattr(fused_logps, "KEPT_BYTES", kept)
    torch.manual_seed(0)
    hidden = torch.randn(150, 32, device=device).to(precision).requires_grad_()
    weight = torch.randn(700, 32, device=device).div_(4).requires_grad_()
    labels = torch.randint(700, (150,), device=device)
    logps, entropy, _ = compute_linear_scores(hidden, weight, labels, 0.7, into_grad=True)
    weight.grad = torch.ones_like(weight)
    (logps.sum() + 0.1 * entropy.sum()).backward()
    plain_hidden, plain_weight = hidden.detach().float().requires_grad_(), weight.detach().clone().requires_grad_()
    all_logps = (plain_hidden @ plain_weight.to(precision).float().T / 0.7).log_softmax(-1)
    plain_logps = all_logps.gather(1, labels[:, None]).squeeze(1)
    plain_entropy = -(all_logps.exp() * all_logps).sum(1)
    (plain_logps.sum() + 0.1 * plain_entropy.sum()).backward()
    tolerance = 1e-4 if precision == torch.float32 else 0.02
    assert_near(logps, plain_logps, tolerance)
    assert_near(entropy, plain_entropy, tolerance)
    assert hidden.grad is not None
    assert plain_hidden.grad is not None
    assert plain_weight.grad is not None
    assert_near(hidden.grad.float(), plain_hidden.grad, tolerance)
    assert_near(weight.grad - 1, plain_weight.grad, tolerance)


@pytest.mark.parametrize("precision", [torch.float32, BFLOAT16])
def test_packed_rows_have_the_gradient_of_padded_ones(device: torch.device, precision: torch.dtype) -> None:
    """With shared prompts and without, in one micro-batch and in several, with activation checkpointing."""
    source = random.Random(0)
    shared = sample_rollouts(HFSampler(make_policy(device), None, ends=(1,)), Sampling(1.0, 9))
    rollouts = [*shared, *(make_rollout(source, 1.0) for _ in range(4))]
    plain = compute_gradient(make_policy(device), rollouts, precision, packing=False)
    tolerance = 1e-4 if precision == torch.float32 else 0.05
    for budget in (1 << 14, 60):
        packed = compute_gradient(make_policy(device), rollouts, precision, tokens_per_microbatch=budget)
        assert_near(packed, plain, tolerance)
    settings = ModelSettings(gradient_checkpointing=True)
    again = compute_gradient(prepare_model(make_policy(device), settings, device), rollouts, precision)
    assert_near(again, plain, tolerance)


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, 12), Sampling(0.8, 12, top_p=0.8, top_k=9, min_tokens=3, record=True)]
)
def test_the_native_sampler_is_the_reference(device: torch.device, sampling: Sampling) -> None:
    model = make_policy(device)
    native, reference = (kind(model, None, (1, 2), rows_per_batch=6) for kind in (NativeSampler, HFSampler))
    found, expected = (one.generate(draw_prompts(7), draw_seeds(7, 3), sampling) for one in (native, reference))
    for own, other in zip(chain(*found), chain(*expected), strict=True):
        assert own.tokens == other.tokens
        assert own.logps == pytest.approx(other.logps, abs=1e-4)
        assert own.support == other.support


def test_a_decoding_step_has_no_tensor_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensors that have a device but no memory, so that no device is needed: mixing devices raises."""
    monkeypatch.setattr("qed.sampling.draw.has_cuda_kernels", lambda _: False)  # no kernel runs without memory
    rows, heads, width, columns, vocabulary = 4, 2, 16, 7, 5000
    monkeypatch.setattr("qed.sampling.draw.NUCLEUS", vocabulary)  # nor is it known whether fewer tokens suffice
    config = make_model(**SHAPE, vocab_size=vocabulary).config
    with torch.no_grad(), FakeTensorMode():
        with torch.device("cuda"):
            model = Qwen2ForCausalLM(config).eval()
        cache = new_cache(model.config)
        for layer in cache.layers:
            layer.update(*(torch.zeros(rows, heads, columns, width, device="cuda") for _ in range(2)))
        mask = torch.ones(rows, columns, dtype=torch.bool, device="cuda")
        ids = [(row, 0) for row in range(rows)]
        sequences = new_sequences(ids, [1] * rows, [columns] * rows, [9] * rows, Sampling(1.0, 9), mask, cache)
        assert sequences.uniforms is not None
        sequences.append_slot()
        sequences.reserve(columns + 9)
        positions, column = sequences.prompt_lens + sequences.output_lens - 1, torch.tensor([columns], device="cuda")
        last = sequences.tokens[:, 0]
        scores = LlamaDecoder(model, 32).step_in_place(sequences, last, positions, column)
        sampling = Sampling(0.7, 9, top_p=0.9, top_k=5, min_p=0.1, min_tokens=3)
        logits = shape_logits(scores, sampling, column, sequences.finished[:, None])
        tokens, logps = draw_tokens(logits, sequences.uniforms[:, 0])
    assert {one.device.type for one in (scores, logits, tokens, logps)} == {"cuda"}


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_in_bfloat16_sampler_and_learner_differ_by_rounding(device: torch.device, lora_rank: int) -> None:
    """Within what a run tolerates before its first step; in float32 nearly nothing, with filters too."""
    filtered = Sampling(0.8, 9, top_p=0.9, record=True)
    cases = [(torch.float32, Sampling(1.0, 9), 1e-4), (BFLOAT16, Sampling(1.0, 9), 0.02), (BFLOAT16, filtered, 0.03)]
    for precision, sampling, tolerance in cases:
        model = make_policy(device)
        if lora_rank:
            model = add_adapters(model, ModelSettings(lora_rank=lora_rank), seed=0)
        sampler = NativeSampler(model, None, (1,), 8, precision)
        rollouts = sample_rollouts(sampler, sampling)
        learner = Learner(
            model, Grpo(), LearnerSettings(), temperature=sampling.temperature, length=9, precision=precision
        )
        learner.score(rollouts, old=True)
        differences = [
            abs(one - two)
            for rollout in rollouts
            for one, two in zip(rollout.logps, rollout.old_logps or (), strict=True)
        ]
        assert sum(differences) / len(differences) < tolerance
        stats = learner.update(rollouts, 0)
        assert 0 < stats["optim/grad_norm"] < float("inf")


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=NEEDS_CUDA)])
def test_four_bit_weights_under_adapters(device: str, tmp_path: Path) -> None:
    """They compute what their dequantized weights compute, stay as they are, and the adapters learn."""
    pytest.importorskip("bitsandbytes")
    folder = tmp_path / "model"
    network, tokenizer = build_model("new:tiny", ["one two three"], 0)
    network.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)
    settings = ModelSettings(name=str(folder), device=device, precision="bfloat16", lora_rank=4, quantization="nf4")
    quantized, _ = load_model(settings)
    model: Any = prepare_model(add_adapters(quantized, settings, 0), settings, torch.device(device))
    before = read_weights(model)
    plain, _ = build_model("new:tiny", ["one two three"], 0)
    shared = {name.replace(".base_layer", ""): tensor.float() for name, tensor in before.items() if "lora_" not in name}
    assert not plain.load_state_dict(shared, strict=False).unexpected_keys
    ids = torch.arange(4, 40, device=device)[None] % len(tokenizer)
    with torch.no_grad(), torch.autocast(device, dtype=BFLOAT16):
        found, expected = model(input_ids=ids).logits.float(), plain.to(device)(input_ids=ids).logits.float()
    assert_near(found, expected, 0.05)
    sampler = NativeSampler(model, None, (1,), 8, BFLOAT16)
    rollouts = sample_rollouts(sampler, Sampling(1.0, 9))
    learner = Learner(model, Grpo(), LearnerSettings(lr=1e-2), length=9, precision=BFLOAT16)
    learner.score(rollouts, old=True)
    for rollout in rollouts:
        assert_near(torch.tensor(rollout.old_logps), torch.tensor(rollout.logps), 0.02)
    first = torch.cat([parameter.detach().flatten().clone() for parameter in learner.parameters])
    assert learner.update(rollouts, 0)["optim/grad_norm"] > 0
    assert not torch.equal(first, torch.cat([parameter.detach().flatten() for parameter in learner.parameters]))
    after = read_weights(model)
    for name in (name for name in before if "lora_" not in name):
        assert torch.equal(before[name], after[name]), name


@pytest.mark.usefixtures("few_problems")
def test_a_run_and_its_resumption(device: torch.device, tmp_path: Path) -> None:
    """From the first step to the report, with a reference model, several updates and top-p; finite throughout."""
    out = tmp_path / "run"
    arguments = ["--model", "new:tiny", "--model.device", device.type, "--algorithm.kl", "0.01", "--out", str(out)]
    arguments += ["--sampling.max_tokens", "8", "--sampling.problems_per_step", "4", "--sampling.group_size", "4"]
    arguments += ["--sampling.top_p", "0.9", "--learner.batch_size", "8", "--evaluation.problems", "4"]
    arguments += ["--run.on_no_signal", "warn"]
    for steps, more in ((2, ()), (3, ("--resume",))):
        run_recipe(resolve_settings("grpo", [*arguments, "--steps", str(steps), *more]), ["grpo"])
    rows = read_lines(out / "metrics.jsonl")
    assert [row["step"] for row in rows if "train/rows" in row] == [1, 2, 3]
    # JSON that is strict has no NaN.
    json.loads(json.dumps(rows), parse_constant=lambda name: pytest.fail(name))
    chosen = json.loads((out / "settings.origin.json").read_text())["model.precision"].startswith(ON_CUDA)
    assert chosen == (device.type == "cuda")
    events = {row["event"] for row in read_lines(out / "events.jsonl")}
    assert "sampler_without_graphs" not in events
    assert "finished" in events
