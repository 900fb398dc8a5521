"""Decoding steps by functions in C++: the answers of the reference, of every batch, and of torch's operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import chain, product
from typing import Any

import pytest
import torch
from making import VOCABULARY, make_model
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from qed.config.settings import ModelSettings
from qed.kernels.build import load_library
from qed.kernels.functions import has_kernels, has_tile_products
from qed.models.lora import add_adapters, disable_adapters
from qed.models.precision import compute_in
from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.compiled import CompiledDecoder
from qed.sampling.native.decoders import choose_decoder
from qed.sampling.native.sampler import NativeSampler
from qed.types import Completion

pytestmark = pytest.mark.skipif(not has_kernels(), reason=f"no functions in C++: {load_library().reason}")

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
MODELS = {
    "qwen2": lambda: make_model(0, torch.float32, **SHAPE),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=6)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
}


def build(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def is_compiled(model: Any, precision: torch.dtype = torch.float32) -> bool:
    with compute_in("cpu", precision):
        return isinstance(choose_decoder(model, 64), CompiledDecoder)


def sample(sampler: HFSampler, prompts: list[tuple[int, ...]], temperature: float = 1.0) -> list[Completion]:
    """Answers of several lengths to prompts of several lengths."""
    seeds = [[derive_seed(which, place) for place in range(5)] for which in range(len(prompts))]
    return list(chain.from_iterable(sampler.generate(prompts, seeds, Sampling(temperature, 30))))


def make_prompts(longest: int) -> list[tuple[int, ...]]:
    source = random.Random(1)
    return [tuple(source.randrange(2, VOCABULARY) for _ in range(source.randint(1, longest))) for _ in range(7)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shared", [1, 999], ids=["shared prompts", "copied prompts"])
def test_it_writes_what_the_reference_writes(
    name: str, temperature: float, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows that come and go, so that the KV cache is compacted and joined."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    model = build(name)
    assert is_compiled(model)
    prompts = make_prompts(20)
    expected = sample(HFSampler(model, None, ends=(1,)), prompts, temperature)
    for rows in (128, 6):
        found = sample(NativeSampler(model, None, ends=(1,), rows_per_batch=rows), prompts, temperature)
        assert [own.tokens for own in found] == [other.tokens for other in expected]
        assert [own.logps for own in found] == [pytest.approx(other.logps, abs=1e-4) for other in expected]


def _negate(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return -output


def _change_forward(layer: Any) -> None:
    weight = layer.weight
    layer.forward = lambda states: -3 * nn.functional.linear(states, weight)


def _store_by_columns(layer: Any) -> None:
    layer.weight = nn.Parameter(layer.weight.detach().T.contiguous().T)


def _set_norms(attention: Any, make: Callable[[Tensor], Tensor]) -> None:
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.data = make(norm.weight.data)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "hook of a layer": lambda layer: layer.register_forward_hook(_negate),
    "hook of a block": lambda layer: layer.mlp.register_forward_hook(_negate),
    "hook of an activation": lambda layer: layer.mlp.act_fn.register_forward_hook(_negate),
    "hook of a linear layer": lambda layer: layer.mlp.down_proj.register_forward_hook(_negate),
    "forward pass of a linear layer": lambda layer: _change_forward(layer.mlp.down_proj),
    "weights by columns": lambda layer: _store_by_columns(layer.mlp.down_proj),
    "norms of heads with strides": lambda layer: _set_norms(
        layer.self_attn, lambda weight: torch.randn(len(weight), 2)[:, 0]
    ),
    "norms of heads in bfloat16": lambda layer: _set_norms(layer.self_attn, lambda weight: (weight + 0.7).bfloat16()),
    "norm in bfloat16": lambda layer: nn.init.uniform_(layer.post_attention_layernorm.bfloat16().weight),
    "gates beyond e^88": lambda layer: layer.mlp.gate_proj.weight.data.mul_(60),
}


@pytest.mark.parametrize("compiles", [True, False], ids=["C++", "torch"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_is_decoded_as_it_is(name: str, compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiles:
        monkeypatch.setattr("qed.sampling.native.decoders.can_compile", lambda model: False)
    model, prompts = build("qwen3"), make_prompts(20)
    plain = sample(NativeSampler(model, None, ends=(1,)), prompts)
    CHANGES[name](model.model.layers[1])
    expected = sample(HFSampler(model, None, ends=(1,)), prompts)
    found = sample(NativeSampler(model, None, ends=(1,)), prompts)
    assert [own.tokens for own in found] == [other.tokens for other in expected]
    assert [own.logps for own in found] == [pytest.approx(other.logps, abs=1e-3) for other in expected]
    assert ([own.tokens for own in found] == [own.tokens for own in plain]) == (name == "weights by columns")


def test_hooks_of_fsdp_change_no_decoder() -> None:
    """They gather weights, which are gathered while answers are sampled."""
    model = build("qwen2")
    for layer in model.model.layers:
        layer.__class__ = type("Sharded", (FSDPModule, type(layer)), {})
        layer.register_forward_pre_hook(lambda *_: None)
    assert is_compiled(model)
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: None)
    assert not is_compiled(model)


def test_answers_that_are_given_already_are_refused() -> None:
    """Nothing is left to sample of them, and no place to write it to."""
    for name, temperature, given in product(MODELS, (0.0, 1.0), (4, 5)):
        sampler = NativeSampler(build(name), None, ends=(1,))
        with pytest.raises(ValueError, match=f"max_tokens is 4, but {given} tokens are already given"):
            sampler.generate([(5, 6, 7, 8, 9, 3)], [[1]], Sampling(temperature, 4), [given])
        assert sampler.generate([(5, 6, 7, 8, 9, 3)], [[]], Sampling(temperature, 4), [given]) == [[]]


def build_adapted() -> Any:
    model = add_adapters(build("qwen2"), ModelSettings(lora_rank=4), 0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    return model


def has_whole_step(model: Any, precision: torch.dtype = torch.float32) -> bool:
    with torch.no_grad(), compute_in("cpu", precision):
        return CompiledDecoder(model, 64).step is not None


def test_adapters_are_merged_for_the_time_of_a_call() -> None:
    """A step is a single call, and the model keeps its weights; disabled adapters are not there."""
    model, prompts = build_adapted(), make_prompts(9)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    assert has_whole_step(model)
    found = []
    for context in (nullcontext(), disable_adapters(model), nullcontext()):
        with context:
            expected = sample(HFSampler(model, None, ends=(1,)), prompts)
            found.append(sample(NativeSampler(model, None, ends=(1,)), prompts))
        assert [own.tokens for own in found[-1]] == [other.tokens for other in expected]
        assert [own.logps for own in found[-1]] == [pytest.approx(other.logps, abs=1e-4) for other in expected]
    assert found[0] == found[2] != found[1]
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer.base_layer, "weight", nn.Parameter(layer.base_layer.weight.double())),
        lambda layer: setattr(layer.lora_A["default"], "weight", nn.Parameter(layer.lora_A["default"].weight.double())),
        lambda layer: layer.lora_dropout.update({"default": nn.Dropout(0.5)}),
        lambda layer: layer.lora_variant.update({"default": object()}),
        lambda layer: layer.register_forward_hook(lambda *given: None),
        lambda layer: layer.base_layer.register_forward_hook(lambda *given: None),
        lambda layer: layer.lora_B.update({"default": nn.Linear(4, layer.out_features)}),
    ],
    ids=["weight", "precision", "dropout", "variant", "hook", "inner hook", "bias"],
)
def test_other_adapters_are_called(change: Callable[[Any], object]) -> None:
    model = build_adapted()
    change(model.model.layers[1].mlp.down_proj)
    assert not has_whole_step(model)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shared", [1, 999], ids=["shared prompts", "copied prompts"])
def test_in_bfloat16_it_computes_what_the_operators_compute(
    name: str, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as bfloat16 is exact: the most likely tokens of a model that is sure of them."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    model = build(name)
    assert is_compiled(model, torch.bfloat16)
    sampler, prompts = NativeSampler(model, None, ends=(1,), precision=torch.bfloat16), make_prompts(20)
    found = sample(sampler, prompts, temperature=0)
    monkeypatch.setattr("qed.sampling.native.decoders.can_compile", lambda model: False)
    expected = sample(sampler, prompts, temperature=0)
    differences = []
    for own, other in zip(found, expected, strict=True):
        pairs = zip(own.tokens, other.tokens, own.logps, other.logps, strict=False)
        for first, second, logp, other_logp in pairs:
            if first != second:  # two tokens as likely as each other; the answers part here
                break
            differences.append(abs(logp - other_logp))
    assert len(differences) > 0.7 * sum(len(own.tokens) for own in expected)
    assert sum(differences) / len(differences) < 0.02


@pytest.mark.skipif(not has_tile_products(), reason="the processor has no AMX")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shared", [1, 999], ids=["shared prompts", "copied prompts"])
def test_with_tiles_a_step_in_bfloat16_is_a_single_call(
    name: str, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the bits of its parts, with one thread and with two."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    model = build(name)
    sampler, prompts = NativeSampler(model, None, ends=(1,), precision=torch.bfloat16), make_prompts(20)
    assert has_whole_step(model, torch.bfloat16)
    found = [sample(sampler, prompts)]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 2)  # of the functions in C++ alone
        found.append(sample(sampler, prompts))
    monkeypatch.setattr("qed.sampling.native.compiled.SINGLE_CALL", ())
    assert not has_whole_step(model, torch.bfloat16)
    assert found == [sample(sampler, prompts)] * 2


def test_other_models_are_left_to_torch() -> None:
    assert not is_compiled(build("qwen2").double())
    assert not is_compiled(build("qwen2").bfloat16())
    assert not is_compiled(make_model(dtype=torch.float32))  # heads of 4 numbers


@pytest.mark.parametrize("make", [partial(build, "qwen2"), build_adapted], ids=["plain", "adapted"])
def test_the_bits_of_an_answer_do_not_depend_on_its_batch(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where prompts are computed alone, the log-probs of 35 answers in batches of any size are the same bits."""
    monkeypatch.setattr("qed.sampling.native.prefill.PREFILL_TOKENS", 1)
    monkeypatch.setattr("qed.sampling.native.projection.has_product", lambda dtype: dtype == torch.float32)
    model, prompts = make(), make_prompts(9)
    found = [
        [(own.tokens, own.logps) for own in sample(NativeSampler(model, None, ends=(1,), rows_per_batch=rows), prompts)]
        for rows in (128, 6, 1)
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("shared", [1, 999], ids=["shared prompts", "copied prompts"])
def test_the_bits_of_many_rows_do_not_depend_on_threads(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step cuts many rows of a small model into parts, which threads share."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    monkeypatch.setattr("qed.sampling.native.prefill.PREFILL_TOKENS", 1)
    model, prompts, found = build("qwen2"), make_prompts(9) * 43, []
    for threads, rows in ((1, 7), (1, 400), (2, 400), (3, 400)):
        # Of the functions in C++ alone: MKL's products of prompts depend on its threads.
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        sampler = NativeSampler(model, None, ends=(1,), rows_per_batch=rows)
        answers = sampler.generate(prompts, [[which] for which in range(len(prompts))], Sampling(1.0, 12))
        found.append([(own.tokens, own.logps) for own in chain.from_iterable(answers)])
    assert found[0] == found[1] == found[2] == found[3]
