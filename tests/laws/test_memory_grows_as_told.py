"""The arithmetic of memory: known sizes of models, what a layer stores, and which way each setting moves it."""

from __future__ import annotations

import copy
import random
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from making import make_model
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3ForCausalLM

from qed.config.phases import Settings
from qed.config.resolve import resolve_settings
from qed.config.settings import ModelSettings
from qed.errors import UsageError
from qed.kernels.functions import has_kernels
from qed.loops.memory import plan_step
from qed.models.load import SIZES, build_model
from qed.models.lora import add_adapters
from qed.models.shapes import KNOWN, ModelShape, build_shape, find_shape, measure_shape
from qed.training.attention import use_packed_attention
from qed.training.batch import collate
from qed.training.logps import compute_scores
from qed.training.memory import (
    MOMENTS,
    Memory,
    SamplingPlan,
    StepPlan,
    count_layer_bytes,
    count_short_bytes,
    estimate_sampling,
    estimate_training,
)
from qed.training.output_tiles import TILE_ELEMENTS
from qed.training.packing import pack_batch
from qed.types import Problem, Rollout

QWEN, GB = KNOWN["Qwen/Qwen2.5-7B"], 10**9
HUGE = StepPlan(8192, 2048, checkpointing=True, dtype="bfloat16", precision="bfloat16")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen2.5-0.5b", 0.494),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.544),
        ("Qwen2.5_Math_1.5B", 1.544),
        ("qwen2.5-3b", 3.086),
        ("Qwen/Qwen2.5-7B-Instruct", 7.616),
        ("Qwen/Qwen3-4B-Instruct-2507", 4.022),
        ("meta-llama/Llama-3.2-1B", 1.236),
        ("new:large", 0.128),
    ],
)
def test_a_known_model_has_its_published_size(name: str, billions: float) -> None:
    assert find_shape(name)[1].weights / GB == pytest.approx(billions, abs=5e-4)


def config_of(name: str) -> Any:
    """The configuration of a known model, rebuilt for transformers from its shape."""
    shape = KNOWN[name]
    kind = Qwen3Config if "Qwen3" in name else Qwen2Config if "Qwen" in name else LlamaConfig
    sizes = {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_width}
    sizes |= {"hidden_size": shape.width, "intermediate_size": shape.inner, "num_hidden_layers": shape.layers}
    return kind(vocab_size=shape.vocabulary, tie_word_embeddings="7B" not in name, **sizes)


@pytest.mark.parametrize("name", KNOWN)
def test_a_shape_is_that_of_the_model_that_transformers_builds(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(name))
    assert measure_shape(model) == KNOWN[name]
    if "1B" in name:
        some_layers = ("k_proj", "down_proj")
        adapted = add_adapters(copy.deepcopy(model), ModelSettings(name="x", lora_rank=8, lora_targets=some_layers), 0)
        assert measure_shape(adapted) == KNOWN[name].with_adapters(8, some_layers)
        adapted = add_adapters(model, ModelSettings(name="x", lora_rank=8), 0)
        assert measure_shape(adapted) == KNOWN[name].with_adapters(8)


def test_a_typo_gets_the_nearest_name_and_a_folder_is_read(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=r"Did you mean 'qwen2\.5-7b'"):
        find_shape("qwen2.5-7bb")
    with pytest.raises(UsageError, match="Did you mean 'new:small'"):
        find_shape("new:smal")
    config_of("meta-llama/Llama-3.2-1B").save_pretrained(tmp_path)
    for place in (tmp_path, tmp_path / "config.json"):
        assert find_shape(str(place)) == (str(tmp_path), KNOWN["meta-llama/Llama-3.2-1B"])
    assert set(SIZES) == {"tiny", "small", "medium", "large"}


# What a layer stores.


def count_stored(model: Any, precision: torch.dtype) -> tuple[int, int]:
    """The bytes that autograd keeps for rows of the same length, and their tokens."""
    source = random.Random(0)
    rows = [tuple(source.randrange(2, 20) for _ in range(40)) for _ in range(4)]
    batch = collate([Rollout(Problem("p", "?", "1"), row[:9], row[9:], (-1.0,) * 31, "", "stop") for row in rows])
    layout, seen = pack_batch(batch, fill=False), dict[int, Tensor]()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    half = torch.autocast("cpu", torch.bfloat16) if precision == torch.bfloat16 else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept), use_packed_attention(model.config), half:
        compute_scores(model, batch, 1.0, layout=layout)
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values()), layout.ids.numel()


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(("dtype", "precision"), [("float32",) * 2, ("float32", "bfloat16"), ("bfloat16", "bfloat16")])
@pytest.mark.parametrize("short", [False, True])
def test_a_layer_stores_what_is_computed(
    qk_norm: bool, rank: int, dtype: str, precision: str, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte without adapters, whose own tensors are not counted; the layer is the difference of two depths. The
    attention of short rows stores at most what is counted for it. All of it is by operators of torch."""
    if rank and (qk_norm or dtype == "bfloat16"):
        return
    monkeypatch.setattr("qed.training.attention.can_compile_layers", lambda body, longest: False)
    if not short:
        monkeypatch.setattr("qed.training.short_attention.QUERIES", {})
    stored, shape, tokens = [], None, 0
    for layers in (1, 2):
        sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": layers}
        if qk_norm:
            config = Qwen3Config(vocab_size=23, num_attention_heads=4, num_key_value_heads=2, head_dim=24, **sizes)
            model: Any = Qwen3ForCausalLM(config).eval()
        else:
            model = make_model(dtype=torch.float32, **sizes)
        if rank:
            model = add_adapters(model, ModelSettings(name="x", lora_rank=rank, precision=precision), 0)  # type: ignore[arg-type]
        model = model.to(torch.bfloat16) if dtype == "bfloat16" else model
        half = torch.bfloat16 if dtype != precision else torch.float32
        found, tokens = count_stored(model, half)
        stored.append(found)
        shape = measure_shape(model)
    assert shape is not None
    plan = StepPlan(tokens, 40, dtype=dtype, precision=precision)
    matrices = shape.layer_weights - 2 * 64 - (2 * 24 if qk_norm else 64 + 2 * 32)
    casts = 2 * matrices if dtype != precision and not rank else 0
    biases = 0 if qk_norm or not casts else 2 * 128
    expected = tokens * count_layer_bytes(shape, plan) + casts
    layer = stored[1] - stored[0]
    if short:
        assert (
            expected - biases
            < layer
            <= expected * (1.05 if rank else 1) + biases + tokens * count_short_bytes(shape, plan)
        )
    else:
        assert layer == pytest.approx(expected, rel=0.05 if rank else 0.0, abs=biases)


@pytest.mark.skipif(not has_kernels(), reason="no functions in C++")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_layer_in_cpp_stores_two_thirds_at_most(precision: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 160}
    models = [make_model(dtype=torch.float32, num_hidden_layers=layers, **sizes) for layers in (1, 2)]
    half = torch.bfloat16 if precision == "bfloat16" else torch.float32
    (less, tokens), (more, _) = (count_stored(model, half) for model in models)
    matrices = 2 * models[0].num_parameters() if precision == "bfloat16" else 0  # casts of a layer's, and more
    counted = tokens * count_layer_bytes(measure_shape(models[0]), StepPlan(tokens, 40, precision=precision))
    assert more - less <= 2 / 3 * counted + matrices


# In which direction each setting moves the estimate.

shapes = some.builds(
    build_shape,
    layers=some.integers(1, 40),
    width=some.sampled_from([64, 512, 4096]),
    inner=some.integers(64, 20000),
    heads=some.sampled_from([8, 16]),
    kv_heads=some.sampled_from([2, 8]),
    vocabulary=some.integers(100, 200_000),
    qk_norm=some.booleans(),
)
plans = some.builds(
    StepPlan,
    tokens=some.integers(1, 100_000),
    row=some.integers(1, 8192),
    microbatches=some.integers(1, 3),
    shared_prompts=some.booleans(),
    checkpointing=some.booleans(),
    optimizer=some.sampled_from(sorted(MOMENTS)),
    dtype=some.sampled_from(["float32", "bfloat16"]),
    precision=some.sampled_from(["float32", "bfloat16"]),
    copies=some.integers(0, 1),
    reference=some.sampled_from(["", "float32", "bfloat16"]),
    reference_offload=some.booleans(),
    offload_for_sampling=some.booleans(),
    on_cpu=some.booleans(),
)


@given(shape=shapes, plan=plans, more=some.integers(1, 5000))
def test_more_work_takes_more_memory(shape: ModelShape, plan: StepPlan, more: int) -> None:
    total = estimate_training(shape, plan).total
    # Logits that are few enough to be kept are given up beyond a bound, which may take less.
    assert estimate_training(shape, replace(plan, tokens=plan.tokens + more)).total >= total - (1 << 28)
    assert estimate_training(shape, replace(plan, copies=plan.copies + 1)).total > total
    assert estimate_training(shape, replace(plan, microbatches=2)).total >= total or plan.microbatches == 3
    assert estimate_training(shape, replace(plan, optimizer="adamw8bit")).total <= total or plan.optimizer != "adamw"
    assert all(size >= 0 for size in estimate_training(shape, plan).parts.values())


@given(shape=shapes, plan=plans, ranks=some.integers(2, 64))
def test_what_is_divided_is_divided(shape: ModelShape, plan: StepPlan, ranks: int) -> None:
    """Gradients only once they are summed; then they have the dtype of their weights."""
    one = estimate_training(shape, plan)
    state = one.parts | one.host
    replicated = estimate_training(shape, replace(plan, ranks=ranks))
    assert {**replicated.parts, "after": 0} == {**one.parts, "after": 0}
    for shard, reduce in product(("grads", "full"), ("step", "microbatch")):
        found = estimate_training(shape, replace(plan, ranks=ranks, shard=shard, reduce=reduce))
        for part in {"weights", "moments", "float32 copies", "reference"} & set(state):
            assert (found.parts | found.host)[part] == pytest.approx(state[part] / ranks, abs=1)
        whole = reduce == "step" and plan.microbatches > 1
        size = 4 if plan.dtype == "float32" or whole else 2
        assert found.parts["gradients"] == pytest.approx(size * shape.weights / (1 if whole else ranks), abs=1)
        gathered = (
            shape.weights if shard == "grads" else min(2, shape.layers) * shape.layer_weights + shape.other_weights
        )
        assert found.parts["gathered"] == gathered * (2 if plan.dtype == "bfloat16" else 4)


@given(
    shape=shapes, plan=plans, rows=some.integers(1, 500), prompt=some.integers(1, 4000), answer=some.integers(1, 4000)
)
def test_more_answers_take_more_memory(shape: ModelShape, plan: StepPlan, rows: int, prompt: int, answer: int) -> None:
    sampler = SamplingPlan(rows, prompt, answer)
    total = estimate_sampling(shape, sampler, plan).total
    for more in (replace(sampler, rows=rows + 1), replace(sampler, answer=answer + 1)):
        assert estimate_sampling(shape, more, plan).total > total
    assert estimate_sampling(shape, replace(sampler, group=8), plan).total <= total


def test_a_full_fine_tune_of_seven_billion_fits_real_cards() -> None:
    """One of 80 GB with the optimizer's state on the host, two of 80 GB without offloading; not one in float32."""

    def take(**changes: Any) -> Memory:
        return estimate_training(QWEN, replace(HUGE, **changes))

    weights = QWEN.weights
    offloaded = take(optimizer="adamw_offload")
    assert offloaded.total < 60 * GB
    assert (offloaded.parts["weights"], offloaded.parts["gradients"]) == (2 * weights, 4 * weights)
    assert offloaded.host == {"moments": 8 * weights, "float32 copies": 4 * weights}
    assert take(optimizer="adamw8bit").total > 90 * GB
    assert take(dtype="float32").total > 120 * GB
    two = {"ranks": 2, "shard": "full", "tokens": 3072}
    assert take(**two, reduce="microbatch").total < 72 * GB
    assert take(**two, reduce="step").total > 80 * GB
    assert estimate_training(QWEN.with_adapters(16), HUGE).total < 30 * GB


def test_what_is_offloaded_leaves_the_device() -> None:
    """A reference model all the time, and the optimizer's state while the sampler runs; on a CPU neither moves."""
    plan = replace(HUGE, reference="bfloat16", copies=1, reference_offload=True, offload_for_sampling=True)
    sampler = SamplingPlan(64, 512, 1024, precision="bfloat16")
    training, sampling = estimate_training(QWEN, plan), estimate_sampling(QWEN, sampler, plan)
    assert training.host == {"reference": 2 * QWEN.weights}
    moved = {"moments": 8, "float32 copies": 4, "initial weights": 2, "reference": 2}
    assert sampling.host == {part: size * QWEN.weights for part, size in moved.items()}
    here = replace(plan, on_cpu=True)
    assert (estimate_training(QWEN, here).host, estimate_sampling(QWEN, sampler, here).host) == ({}, {})
    sharded = replace(plan, critic=True, ranks=4, shard="full")  # whose models stay on their devices
    assert estimate_training(QWEN, sharded).host == {}
    assert estimate_sampling(QWEN, sampler, sharded).host.keys() == {"moments", "float32 copies", "initial weights"}


def test_four_bits_take_a_quarter_of_sixteen() -> None:
    """A weight that a product restores is counted with what a step and a batch of answers take."""
    adapted, sampler = QWEN.with_adapters(16), SamplingPlan(64, 512, 1024, precision="bfloat16")
    packed = replace(HUGE, quantized=True)
    linear, restored = QWEN.layers * QWEN.linear_weights, 2 * QWEN.width * QWEN.inner
    saved = estimate_training(adapted, HUGE).parts["weights"] - estimate_training(adapted, packed).parts["weights"]
    assert saved == pytest.approx(linear * (2 - 0.5 - 1 / 64), rel=1e-3)
    assert estimate_training(adapted, HUGE).total - estimate_training(adapted, packed).total == saved - restored
    assert estimate_sampling(adapted, sampler, HUGE).total - estimate_sampling(adapted, sampler, packed).total == (
        saved - restored
    )
    settings = resolve_settings("grpo", ["--model.name", "x", "--model.lora_rank", "4", "--model.quantization", "nf4"])
    assert plan_step(adapted, settings.settings, 64, 64, 0, "cuda").quantized


def test_a_critic_takes_what_the_policy_takes_between_steps() -> None:
    """Weights, float32 copies and moments, divided as these; offloaded it is away while answers are sampled."""
    for ranks in (1, 4):
        plan = replace(HUGE, critic=True, ranks=ranks, shard="full" if ranks > 1 else "none")
        parts = estimate_training(QWEN, plan).parts
        assert parts["critic"] == parts["weights"] + parts["moments"] + parts["float32 copies"]
        assert parts["critic"] == pytest.approx(14 * QWEN.weights / ranks, rel=1e-3)
    sampling = SamplingPlan(rows=64, prompt=128, answer=512)
    for offload in (False, True):
        memory = estimate_sampling(QWEN, sampling, replace(HUGE, critic=True, critic_offload=offload))
        assert ("critic" in memory.host, "critic" in memory.parts) == (offload, not offload)
    chosen = ["--model.precision", "bfloat16", "--algorithm.critic.offload", "true"]
    plan = plan_step(QWEN, resolve_settings("ppo", chosen).settings, 64, 64, 0, "cuda")
    assert (plan.critic, plan.critic_offload) == (True, True)
    trunk = resolve_settings("ppo", ["--algorithm.critic.trunk", "policy"]).settings
    assert not plan_step(QWEN, trunk, 64, 64, 0, "cuda").critic


def test_the_estimate_reads_the_settings_of_ranks_and_precision() -> None:
    given = ["--model.precision", "bfloat16", "--model.dtype", "bfloat16", "--model.reference_dtype", "float32"]
    given += ["--parallel.shard", "full", "--parallel.reduce", "microbatch", "--algorithm.kl", "0.01"]
    given += ["--learner.optimizer", "adamw_offload", "--model.reference_offload", "true", "--learner.batch_size", "8"]
    settings = resolve_settings("grpo", [*given, "--sampling.max_tokens", "1025"]).settings
    assert isinstance(settings, Settings)
    plan = plan_step(QWEN, settings, 1024, 0, 0, "cuda", ranks=4)
    assert (plan.dtype, plan.reference, plan.reference_offload) == ("bfloat16", "float32", True)
    assert (plan.ranks, plan.shard, plan.reduce, plan.optimizer) == (4, "full", "microbatch", "adamw_offload")
    assert (plan.tokens, plan.microbatches) == (4096, 1)  # the two rows of a rank
    alone = plan_step(QWEN, settings, 1024, 0, 0, "cuda")
    assert (alone.ranks, alone.tokens, alone.microbatches) == (1, 16384, 1)


def test_a_teacher_has_its_own_size(tmp_path: Path) -> None:
    """It is read from its folder; one that cannot be read counts as the policy."""
    teacher, tokenizer = build_model("new:tiny", ["1 + 1 = 2"], seed=0)
    teacher.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    given = ["--algorithm.divergence", "jsd", "--sampling.max_tokens", "1025", "--algorithm.teacher"]
    plans = []
    for name in (str(tmp_path), str(tmp_path / "gone")):
        settings = resolve_settings("opd", [*given, name]).settings
        assert isinstance(settings, Settings)
        plans.append(plan_step(QWEN, settings, 1024, 0, 0, "cuda"))
    small, unknown = (estimate_training(QWEN, plan) for plan in plans)
    assert small.parts["reference"] == 4 * sum(each.numel() for each in teacher.parameters())
    assert unknown.parts["reference"] == 4 * QWEN.weights
    sampled = estimate_training(QWEN, replace(plans[0], divergence=False))
    assert small.parts["output layer"] - sampled.parts["output layer"] == 4 * 7 * TILE_ELEMENTS["other"]
