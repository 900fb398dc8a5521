"""QLoRA: what cannot be quantized is refused, and what is saved is whole weights that anybody loads."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from making import make_model, make_rollout
from transformers import AutoModelForCausalLM

from qed.algorithms.grpo import Grpo
from qed.config.settings import LearnerSettings, ModelSettings
from qed.errors import UsageError
from qed.models import adapted_layer, load, lora, qlora
from qed.models.save import save_model
from qed.models.shapes import measure_shape
from qed.sampling.native import projection
from qed.sampling.native.projection import Projections
from qed.training.learner import Learner
from qed.training.memory import StepPlan, estimate_state

SETTINGS = ModelSettings(name="somewhere", lora_rank=4, quantization="nf4")
HALF = replace(SETTINGS, precision="bfloat16")
IDS = torch.arange(14).reshape(2, 7) % 23


class NoTokenizer:
    """Stands beside a model where only its weights matter."""

    def save_pretrained(self, folder: Path) -> None:
        """Write nothing."""


@pytest.mark.parametrize("wrong", [{"lora_rank": 0}, {"name": "new:tiny"}])
def test_without_adapters_or_trained_weights_there_is_nothing_to_quantize(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"model\.quantization needs model\.lora_rank above 0"):
        ModelSettings(**({"name": "somewhere", "lora_rank": 4, "quantization": "nf4"} | wrong))


def test_a_processor_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    for part in load.build_model("new:tiny", ["1 + 1 = 2"], 0):
        part.save_pretrained(tmp_path)
    settings = replace(SETTINGS, name=str(tmp_path), device="cpu")
    with pytest.raises(UsageError, match=r"needs a CUDA device, but the model is for cpu: .* model\.quantization=none"):
        load.load_model(settings)
    assert load.load_model(replace(settings, quantization="none"))[0] is not None
    assert qlora.build_quantization_options(ModelSettings(), torch.device("cpu")) == {}


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qlora, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package bitsandbytes: pip install 'qed\[8bit\]'"):
        qlora.build_quantization_options(SETTINGS, torch.device("cuda"))


def test_what_is_saved_beside_a_quantized_model_does_not_say_that_it_is(tmp_path: Path) -> None:
    """The weights are handed over; the shape they are saved with has none of its own."""
    network = make_model()
    assert qlora.build_unquantized_shell(network) is network
    network.config.quantization_config = SimpleNamespace()
    shape = qlora.build_unquantized_shell(network)
    assert {parameter.device.type for parameter in shape.parameters()} == {"meta"}
    shape.save_pretrained(tmp_path, state_dict=network.state_dict())
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert getattr(again.config, "quantization_config", None) is None
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, network(IDS).logits)


def test_a_quantized_model_needs_room_for_its_whole_weights() -> None:
    assert qlora.count_full_bytes(torch.zeros(32, dtype=torch.uint8)) == 64 * 4
    assert qlora.count_full_bytes(torch.zeros(32)) == 32 * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_memory_of_four_bits_is_what_is_computed(dtype: str, tmp_path: Path) -> None:
    """To the small weights of norms and biases, which may be in float32."""
    pytest.importorskip("bitsandbytes")
    made = make_model(dtype=torch.float32, hidden_size=512, intermediate_size=1536)
    made.save_pretrained(tmp_path / "base")
    settings = replace(SETTINGS, precision="bfloat16", dtype=dtype)
    told = {**qlora.build_quantization_options(settings, torch.device("cuda")), "device_map": {"": "cpu"}}
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=getattr(torch, dtype), **told)
    network = lora.add_adapters(network, settings, 0)
    held = {tensor.data_ptr(): tensor.nbytes for tensor in network.parameters()}
    for weight in network.parameters():
        state = getattr(weight, "quant_state", None)
        held |= {each.data_ptr(): each.nbytes for each in (state.absmax, state.state2.absmax)} if state else {}
    shape = replace(measure_shape(made), adapters=measure_shape(network).adapters)
    plan = StepPlan(1, 1, dtype=dtype, precision="bfloat16", quantized=True)
    assert estimate_state(shape, plan).parts["weights"] == pytest.approx(sum(held.values()), rel=0.003)


def test_adapters_over_four_bits_learn_and_are_saved_in_full(tmp_path: Path) -> None:
    """bitsandbytes quantizes on a processor too, slowly: the whole road but the device."""
    pytest.importorskip("bitsandbytes")
    make_model(dtype=torch.float32).save_pretrained(tmp_path / "base")
    told = {**qlora.build_quantization_options(SETTINGS, torch.device("cuda")), "device_map": {"": "cpu"}}
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32, **told)
    network = lora.add_adapters(network, SETTINGS, 0)
    packed = [weight for weight in network.parameters() if hasattr(weight, "quant_state")]
    assert len(packed) == 14, "seven layers in each of two blocks"
    learner = Learner(network, Grpo(kl=0.1), LearnerSettings(lr=0.1), reference=lora.AdapterDisabled(network))
    rollouts = [make_rollout(random.Random(seed), advantage=1.0) for seed in range(3)]
    learner.score(rollouts, old=False)
    before = [weight.clone() for weight in packed]
    assert learner.update(rollouts, 0)["optim/grad_norm"] > 0
    assert all(torch.equal(weight, old) for weight, old in zip(packed, before, strict=True))
    save_model(network, NoTokenizer(), tmp_path / "hf")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    assert not any(hasattr(weight, "quant_state") for weight in again.parameters())
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, network(IDS).logits, rtol=1e-3, atol=1e-3)


def load_quantized(folder: Path, dtype: torch.dtype = torch.bfloat16, settings: ModelSettings = HALF) -> Any:
    """A model in 4 bits on the processor, whose adapters change what it computes."""
    make_model(dtype=torch.float32).save_pretrained(folder)
    told = {**qlora.build_quantization_options(settings, torch.device("cuda")), "device_map": {"": "cpu"}}
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **told)
    network = lora.add_adapters(network, settings, 0)
    for name, weight in network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return network


def list_attention(network: Any) -> list[Any]:
    own = next(module for name, module in network.named_modules() if name.endswith("self_attn"))
    return [own.q_proj, own.k_proj, own.v_proj]


def test_a_layer_in_four_bits_computes_what_its_module_computes(tmp_path: Path) -> None:
    """Its result and all gradients, with the weight dequantized once for each pass."""
    pytest.importorskip("bitsandbytes")
    layer = list_attention(load_quantized(tmp_path))[0]
    assert adapted_layer.is_adapted_quantized(layer)
    assert not adapted_layer.is_adapted_linear(layer)
    states = torch.randn(9, layer.in_features).bfloat16().requires_grad_()
    trained = [states, *(weight for name, weight in layer.named_parameters() if "lora_" in name)]
    slopes = torch.randn(9, layer.out_features).bfloat16()
    found = adapted_layer.multiply_adapted(layer, states)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(states)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    gradients = zip(
        torch.autograd.grad(found, trained, slopes), torch.autograd.grad(expected, trained, slopes), strict=True
    )
    for one, other in gradients:
        torch.testing.assert_close(one.float(), other.float(), rtol=0.03, atol=0.03)


def test_a_weight_is_dequantized_in_the_dtype_of_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was quantized in float32, as by default, is never there in float32 as a whole."""
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = list_attention(load_quantized(tmp_path, torch.float32))[0].base_layer.weight
    assert weight.quant_state.dtype == torch.float32
    expected = functional.dequantize_4bit(weight.data, weight.quant_state).bfloat16()
    restored: list[torch.dtype] = []
    dequantize = functional.dequantize_4bit
    monkeypatch.setattr(
        functional, "dequantize_4bit", lambda *rest: (full := dequantize(*rest), restored.append(full.dtype))[0]
    )
    assert torch.equal(qlora.dequantize(weight, torch.bfloat16), expected)
    assert restored == [torch.bfloat16]


@pytest.mark.parametrize("at_once", [True, False], ids=["dequantized once", "in each step"])
def test_decoding_steps_multiply_four_bit_weights(at_once: bool, tmp_path: Path) -> None:
    """Joined and alone; as on a device, which this pretends to be."""
    pytest.importorskip("bitsandbytes")
    network = load_quantized(tmp_path)
    modules = list_attention(network)
    states = torch.randn(5, modules[0].in_features).bfloat16()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        projections = Projections(network)
        projections.casts, projections.dequantizes = True, at_once
        projections.compiled = projections.rounds = projections.tiles = projections.packs = False
        joined, alone = projections.join(*modules), projections.take(modules[0])
        expected = [module(states) for module in modules]
        assert alone is not modules[0], "it is not the module that is called"
        torch.testing.assert_close(alone(states), expected[0], rtol=0.02, atol=0.02)
        for one, other in zip(joined(states), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("at_once", [True, False], ids=["dequantized once", "in each step"])
def test_copies_are_counted_of_layers_with_adapters_alone(
    at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a decoder on a device keeps for weights in 4 bits, whose memory is as large as what decides."""
    pytest.importorskip("bitsandbytes")
    network = load_quantized(tmp_path, settings=replace(HALF, lora_targets=("q_proj",)))
    layers = [module for module in network.modules() if adapted_layer.is_adapted_quantized(module)]
    full = 2 * sum(layer.in_features * layer.out_features for layer in layers)
    assert 2 * full < sum(2 * weight.numel() for weight in network.parameters() if qlora.is_quantized(weight))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.bfloat16)
    memory = projection.COPIES_SHARE * full - (not at_once)
    monkeypatch.setattr(projection, "count_device_memory", lambda device: memory)
    device = torch.device("cuda")
    projections = Projections(SimpleNamespace(device=device, modules=network.modules, parameters=network.parameters))
    assert projections.dequantizes == at_once
    found: list[Any] = [projections._read_layer(layer) for layer in layers]
    kept = [each.weight if at_once else each.weight.state.absmax for each in found]
    kept += [adapter.bfloat16() for each in found for adapter in each.adapter[:2]]
    assert projections.copied_bytes == sum(tensor.nbytes for tensor in kept)


def test_weights_in_four_bits_are_counted_in_full(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    weights = list(load_quantized(tmp_path).parameters())
    packed = sum(weight.numel() for weight in weights if weight.dtype == torch.uint8)
    assert packed
    counted = qlora.count_weights(torch.nn.ParameterList(weights))
    assert counted == sum(weight.numel() for weight in weights) + packed, "a byte has two"
