"""The kernels of a decoding step on a CUDA device compute what torch's operations do.

Without a device they run in Triton's interpreter, in a process of its own: functions that begin with `interpreted`.
"""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest
import torch
from making import VOCABULARY, make_model
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from qed.config.settings import ModelSettings
from qed.models.adapted_layer import read_adapter
from qed.models.lora import add_adapters
from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.draw import draw_tokens
from qed.sampling.native import batch, decoders, projection
from qed.sampling.native.cuda_decoder import CudaDecoder
from qed.sampling.native.decoder import LlamaDecoder
from qed.sampling.native.decoding_trial import find_fault
from qed.sampling.native.projection import Joined, Projections
from qed.sampling.native.sampler import NativeSampler

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "initializer_range",
    "eos_token_id",
    "pad_token_id",
    "bos_token_id",
)
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 9}),
}


def build(name: str, **changes: Any) -> Any:
    kind, config, own = MODELS[name]
    like = make_model(dtype=torch.float32, num_hidden_layers=1, **WIDE).config.to_dict()
    kept = {key: like[key] for key in SIZES}
    torch.manual_seed(0)
    return kind(config(**{**kept, **own, **changes})).float().eval()


def ask(count: int, group: int, longest: int = 40) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    source = random.Random(1)
    prompts = [tuple(source.randrange(2, VOCABULARY) for _ in range(source.randint(3, longest))) for _ in range(count)]
    return prompts, [[derive_seed("kernels", row, one) for one in range(group)] for row in range(count)]


@pytest.mark.parametrize(("name", "units", "shared"), [("qwen2", 60, 1), ("qwen3", 1, 1), ("mistral", 60, 999)])
def interpreted_steps_are_those_of_torch(name: str, units: int, shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As rows come and leave, with a prompt's columns shared or copied, in one run of columns or in several."""
    from qed.kernels.cuda import decoding  # noqa: PLC0415 -- Triton is not everywhere

    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    monkeypatch.setattr(decoding, "COLUMNS", 16)
    monkeypatch.setattr(decoding, "FEW_COLUMNS", 16)
    monkeypatch.setattr(decoding, "count_units", lambda _: units)
    monkeypatch.setattr(decoders, "can_compile", lambda _: False)
    model, (prompts, seeds), found = build(name), ask(2, 2, 20), []
    steps = []
    original = CudaDecoder._step
    monkeypatch.setattr(CudaDecoder, "_step", lambda *args: (steps.append(1), original(*args))[1])
    for uses in (False, True):
        monkeypatch.setattr(decoders, "can_use_kernels", lambda _, uses=uses: uses)
        sampler = NativeSampler(model, None, (1,), 3, torch.float32)
        found.append([*chain(*sampler.generate(prompts, seeds, Sampling(1.0, 5)))])
    assert len(steps) >= 5
    for one, other in zip(*found, strict=True):
        assert one.tokens == other.tokens
        assert one.logps == pytest.approx(other.logps, abs=2e-4)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (7, 1)])
def interpreted_attention_is_tried(heads: int, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right kernels have no fault; of wrong ones and of those that a device refuses the reason is said."""
    from qed.kernels.cuda import decoding  # noqa: PLC0415

    place, given = (torch.device("cpu"), torch.float16, heads, kv_heads, 16), []
    original = decoding.Heads.attend
    monkeypatch.setattr(decoding.Heads, "attend", lambda *args: given.append(original(*args)) or given[0])
    find_fault.cache_clear()
    assert find_fault(*place) == ""

    def refuse(*_: Any) -> Any:
        raise Refused("out of resource: shared memory, Required: 141312, Hardware limit: 101376")

    def scale(factor: float) -> Any:
        return lambda *_: factor * given[0]  # the interpreter takes seconds for the kernels

    broken = [("wrong by 0.1", scale(1.1)), ("wrong by nan", scale(torch.nan)), ("Refused: out of resource", refuse)]
    for reason, attend in broken:
        find_fault.cache_clear()
        monkeypatch.setattr(decoding.Heads, "attend", attend)
        with pytest.warns(UserWarning, match=f"kernels of decoding steps are not used: .*{reason}"):
            assert reason in find_fault(*place)
    find_fault.cache_clear()


class Refused(Exception):
    """As Triton's `OutOfResources`: no RuntimeError."""


def interpreted_draws_are_those_of_float64() -> None:
    from qed.kernels.cuda import drawing  # noqa: PLC0415

    check_draws(torch.device("cpu"), drawing.draw)


def check_draws(device: torch.device, draw: Any) -> None:
    """Tokens and log-probs, in one block and in several, where some tokens are excluded and where the number is at an
    end."""
    source = torch.Generator().manual_seed(0)
    for size, dtype in [(300, torch.float32), (9000, torch.float32), (9000, torch.bfloat16), (1, torch.float32)]:
        logits = torch.randn(12, size, generator=source).mul(3).to(dtype)
        logits[:, 5:290] = -torch.inf
        uniform = torch.rand(12, generator=source, dtype=torch.float64)
        uniform[:2] = torch.tensor([0.0, 1 - 2**-53])
        logps = logits.double().log_softmax(-1)
        cumulative = logps.exp().cumsum(-1)
        target = torch.minimum(uniform[:, None] * cumulative[:, -1:], cumulative[:, -1:] * (1 - 1e-12))
        expected = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
        for numbers, wanted in ((uniform, expected), (None, logits.float().argmax(-1))):
            given = None if numbers is None else numbers.to(device)
            tokens, found = (each.cpu() for each in draw(logits.to(device), given))
            assert (tokens == wanted).float().mean() >= (0.9 if numbers is not None else 1)
            assert bool((logits.gather(1, tokens[:, None]) > -torch.inf).all())
            torch.testing.assert_close(found.double(), logps.gather(1, tokens[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    tokens, found = draw(torch.tensor([[0.0, torch.nan, 1.0]], device=device), uniform[:1].to(device))
    assert 0 <= int(tokens) < 3
    assert bool(found.isnan())


@pytest.mark.parametrize("enabled", [True, False])
def test_adapters_beside_their_weights(enabled: bool) -> None:
    """Joined and alone, in place of peft's modules."""
    model: Any = add_adapters(make_model(dtype=torch.float32, **WIDE), ModelSettings(lora_rank=4), 0)
    layer = model.base_model.layers[0]
    attention = layer.self_attn
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    for module in (attention.q_proj, attention.k_proj, attention.v_proj, layer.mlp.down_proj):
        module.enable_adapters(enabled)
    projections = Projections(model)
    projections.packs, projections.compiled, projections.casts = False, False, True
    states, inner = torch.randn(5, 64), torch.randn(5, 96)
    modules = [attention.q_proj, attention.k_proj, attention.v_proj]
    for found, module in zip(projections.join(*modules)(states), modules, strict=True):
        torch.testing.assert_close(found, module(states), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(projections.take(layer.mlp.down_proj)(inner), layer.mlp.down_proj(inner))


@pytest.mark.parametrize(("name", "bias"), [("qwen2", True), ("mistral", False)])
def test_adapters_together_beside_large_weights(name: str, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen weights in the precision of the products are not copied."""
    monkeypatch.setattr(projection, "SMALL", 0)
    model: Any = add_adapters(build(name).to(torch.bfloat16), ModelSettings(lora_rank=4), 0)
    attention = model.base_model.layers[0].self_attn
    modules = [attention.q_proj, attention.k_proj, attention.v_proj]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for path, weight in model.named_parameters():
            if "lora_B" in path or path.endswith("bias"):
                weight.normal_()
        projections = Projections(model)
        projections.packs, projections.compiled, projections.casts = False, False, True
        join = projections.join(*modules)
        assert isinstance(join, Joined)
        assert isinstance(join.multiply, projection._AdaptedTogether)
        states = torch.randn(5, 64)
        for found, module in zip(join(states), modules, strict=True):
            base, adapter = module.get_base_layer(), read_adapter(module)
            assert adapter is not None
            assert (base.bias is not None) == bias
            added = states @ adapter.down.T @ adapter.up.T * adapter.factor
            expected = torch.nn.functional.linear(states, base.weight, base.bias) + added
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=5e-2)
            torch.testing.assert_close(found, module(states).to(found.dtype), rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize(("width", "queries", "capability"), [(128, 64, 86), (256, 16, 86), (256, 64, 120)])
def test_blocks_fit_small_devices(width: int, queries: int, capability: int) -> None:
    """A multiprocessor of compute capability 8.6 or 12.0 has 99 KiB for a program's blocks."""
    compiler = pytest.importorskip("triton.compiler", reason="Triton is not installed")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", capability, 32)
    from qed.kernels.cuda import decoding  # noqa: PLC0415 -- Triton is not everywhere

    kernel = decoding._attend_prefix
    sizes = {"HEADS": 8, "KV_HEADS": 2, "WIDTH": width, "QUERIES": queries, "BLOCK": decoding.COLUMNS}
    pointers = dict.fromkeys(("query", "keys", "values"), "*bf16")
    pointers |= dict.fromkeys(("totals", "peaks", "masses"), "*fp32")
    kinds = {**pointers, "visible": "*u8", "row_of_slot": "*i64", "owner": "*i64", "scaling": "fp32"}
    kinds |= dict.fromkeys(sizes, "constexpr")
    signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
    source = compiler.ASTSource(kernel, signature, sizes)
    built = compiler.compile(source, target=target, options={"num_stages": decoding.count_stages(width)})
    assert built.metadata.shared <= 99 * 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_weights_that_are_cast_count_as_copies(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither embeddings nor weights of 4 bits, whose layers are of another class."""

    class Quantized(torch.nn.Linear):
        pass

    model: Any = make_model(dtype=dtype, tie_word_embeddings=False)
    plain = sum(layer.weight.numel() for layer in model.modules() if type(layer) is torch.nn.Linear)
    quantized = model.model.layers[0].mlp.down_proj
    quantized.__class__ = Quantized
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    expected = 0 if dtype == torch.bfloat16 else 2 * (plain - quantized.weight.numel())
    assert Projections(model).copied_bytes == expected


@pytest.mark.gpu
@NEEDS_CUDA
def test_draws_on_a_device() -> None:
    check_draws(torch.device("cuda"), draw_tokens)


def adapt(model: Any, dtype: torch.dtype) -> Any:
    """Add adapters that change the logits, to frozen linear layers of a precision."""
    adapted = add_adapters(model, ModelSettings(lora_rank=4), 0)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
        elif "_proj.base_layer" in name:
            weight.data = weight.data.to(dtype)
    return adapted


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("adapted", ["", "float32", "bfloat16"])
@pytest.mark.parametrize("shared", [1, 999])
@pytest.mark.parametrize("name", MODELS)
def test_steps_on_a_device(name: str, shared: int, adapted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 tokens and log-probs are those of torch's operations but for rounding, with graphs and without."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    changes = {"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 14 * 64, "head_dim": 64}
    model: Any = build(name, **{**changes, "initializer_range": 0.05})
    if adapted:
        model = adapt(model, getattr(torch, adapted))
    monkeypatch.setattr(projection, "SMALL", 0)
    model = model.cuda()
    (prompts, seeds), found = ask(12, 5, 150), []
    made, original = list[Any](), decoders.choose_decoder
    monkeypatch.setattr(batch, "choose_decoder", lambda *args: (made.append(original(*args)), made[-1])[1])
    for uses, graphs in ((False, False), (True, False), (True, True)):
        with monkeypatch.context() as patch:
            if not uses:
                patch.setattr(decoders, "can_use_kernels", lambda _: False)
            sampler = NativeSampler(model, None, (-1,), 24, torch.bfloat16)
            if not graphs:
                sampler.disable_graphs("the other side of the comparison")
            found.append([*chain(*sampler.generate(prompts, seeds, Sampling(1.0, 60)))])
            assert not graphs or sampler.without_graphs is None
    assert [type(one) for one in made] == [LlamaDecoder, CudaDecoder, CudaDecoder]
    plain, kernels, captured = found
    assert sum(one.tokens == two.tokens for one, two in zip(kernels, captured, strict=True)) >= 0.8 * len(kernels)
    first = [(one.logps[0], two.logps[0]) for one, two in zip(plain, kernels, strict=True)]
    assert max(abs(one - two) for one, two in first) < 0.1
    # Behind the first other token the answers are others.
    differences = [
        abs(one - two)
        for each, other in zip(plain, kernels, strict=True)
        for one, two, same in zip(each.logps, other.logps, map(int.__eq__, each.tokens, other.tokens), strict=True)
        if same
    ]
    assert sorted(differences)[len(differences) // 2] < 0.02
