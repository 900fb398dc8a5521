"""The layers of a learner on a CUDA device, computed with kernels between products, are those of transformers.

Without a device they run in Triton's interpreter, in a process of its own: functions that begin with `interpreted`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_cuda_decoding import build
from test_packing import rows_with_shared_prompts
from torch import Tensor, nn

from qed.config.settings import ModelSettings
from qed.models import device_layers, own_layers
from qed.models.adapted_layer import multiply_adapted
from qed.models.device_layers import find_fault
from qed.models.families import split_head
from qed.models.load import prepare_model
from qed.models.lora import add_adapters, disable_adapters
from qed.models.own_layers import prepare_fused_layers
from qed.models.shapes import measure_shape
from qed.sampling.native import prefill
from qed.sampling.native.kept import NOTHING
from qed.training import attention
from qed.training.attention import use_packed_attention
from qed.training.logps import compute_logps
from qed.training.memory import StepPlan, count_layer_bytes
from qed.training.packing import pack_batch

CPU = torch.device("cpu")
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def compute_gradients(network: nn.Module) -> list[Tensor]:
    """Log-probs and entropies of packed rows, and the gradient of each trained weight."""
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    batch = rows_with_shared_prompts().to(trained[0].device)
    with use_packed_attention(split_head(network)[0].config):
        logps, entropy = compute_logps(network, batch, 0.8, pack_batch(batch))
        found = torch.autograd.grad((logps.sin() + entropy).sum(), trained)
    return [logps.detach(), entropy.detach(), *found]


def check(network: nn.Module, tolerance: float, monkeypatch: pytest.MonkeyPatch, able: Any) -> None:
    """Compare a model whose layers are computed with kernels with the same model by torch's own operations."""
    monkeypatch.setattr(own_layers, "suits_kernels", lambda _: False)
    expected = compute_gradients(network)
    calls: list[int] = []
    compute = device_layers.compute_layer
    monkeypatch.setattr(own_layers, "suits_kernels", able)
    monkeypatch.setattr(
        own_layers, "compute_layer", lambda *args, **given: (calls.append(1), compute(*args, **given))[1]
    )
    found = compute_gradients(network)
    assert len(calls) >= 2
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= tolerance * other.norm() + 1e-7


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that takes the way of a CUDA device."""
    monkeypatch.setattr(attention, "can_compile_layers", lambda *_: False)


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize(
    ("name", "checkpointing", "rank"),
    [("qwen2", True, 0), ("qwen3", False, 0), ("mistral", False, 0), ("qwen3", False, 2)],
)
def interpreted_layers_are_those_of_transformers(
    name: str, checkpointing: bool, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With biases, norms of heads, windows, activation checkpointing and adapters; the last one where it is read."""
    network: Any = build(name, num_hidden_layers=2)
    settings = ModelSettings(name="x", gradient_checkpointing=checkpointing, lora_rank=rank)
    network = prepare_model(add_adapters(network, settings, 0) if rank else network, settings, CPU)
    with torch.no_grad():  # of norms and adapters, which begin as ones and zeros
        for weight in network.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)), alpha=0.05)
    check(network, 2e-5, monkeypatch, lambda _: True)


@pytest.mark.parametrize(
    ("name", "common", "window"),
    [("qwen2", 0, 0), ("qwen3", 3, 0), ("mistral", 0, 9), ("mistral", 3, 9), ("mistral", 3, 19)],
)
def interpreted_prompts_are_those_of_transformers(
    name: str, common: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, mask, keys and values; of prompts of several lengths, the longest of them longer than the window, also
    with a beginning that is computed once, behind which the rest alone is shorter than the window."""
    network = build(name, num_hidden_layers=2, **({"sliding_window": window} if window else {}))
    prompts, found = [(3, 4, 5), tuple(range(2, 20)), (7, 7, 8, 9), (5,)], []
    prompts = [(6, 5, 4)[:common] + prompt for prompt in prompts]
    for able in (False, True):
        monkeypatch.setattr(prefill, "can_compile_layers", lambda *_: False)
        monkeypatch.setattr(prefill, "_can_compute_on_device", lambda _, able=able: able)
        with torch.no_grad():
            nothing = [NOTHING] * len(prompts)
            cache, mask, logits = prefill.prefill(network, prompts, nothing, common if able else 0)
        hidden = ~mask[:, None, :, None]
        both = [(layer.keys[:, :, : layer.used], layer.values[:, :, : layer.used]) for layer in cache.layers]
        found.append([logits, *(each.masked_fill(hidden, 0) for layer in both for each in layer)])
        assert mask.sum(1).tolist() == [len(prompt) for prompt in prompts]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def interpreted_layers_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right kernels have no fault; of wrong ones and of those that fail the reason is said."""
    from qed.kernels.cuda import layers  # noqa: PLC0415 -- Triton is not everywhere

    place = CPU, torch.float16
    find_fault.cache_clear()
    assert find_fault(*place) == ""

    def fail(*_: Any) -> Any:
        raise RuntimeError("no compiler\nat all")

    reverse_gate = layers.reverse_gate
    broken = [
        ("they are wrong by", "reverse_gate", lambda *given: (reverse_gate(*given)[0] * 1.1, reverse_gate(*given)[1])),
        ("RuntimeError: no compiler", "rotate", fail),
    ]
    for reason, name, function in broken:
        find_fault.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(layers, name, function)
            with pytest.warns(UserWarning, match=reason):
                assert reason in find_fault(*place)
    find_fault.cache_clear()


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize(("name", "rank"), [("qwen3", 0), ("qwen2", 3)])
def interpreted_layers_store_what_is_counted(name: str, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_layers, "suits_kernels", lambda _: True)
    monkeypatch.setattr(attention, "find_refusal", lambda _: "")
    stored, tokens, network = [], 0, None
    for layers in (1, 2):
        network = build(name, num_hidden_layers=layers)
        if rank:
            network = add_adapters(network, ModelSettings(name="x", lora_rank=rank, precision="bfloat16"), 0)
        found, tokens = count_stored(network)
        stored.append(found)
    shape = measure_shape(network)
    counted = tokens * count_layer_bytes(shape, StepPlan(tokens, 40, precision="bfloat16", kernels=True))
    casts = 0 if rank else 2 * shape.layer_weights
    assert stored[1] - stored[0] == pytest.approx(counted + casts, rel=0.08 if rank else 0.01)


def count_stored(network: nn.Module) -> tuple[int, int]:
    """Count the bytes that a forward pass under autocast stores besides weights, and its inputs."""
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(states: Tensor) -> Tensor:
        if states.untyped_storage().data_ptr() not in weights:
            kept[states.untyped_storage().data_ptr()] = states
        return states

    layout = pack_batch(rows_with_shared_prompts())
    with torch.autograd.graph.saved_tensors_hooks(keep, keep), torch.autocast("cpu", torch.bfloat16):
        states = attention.compute_packed_states(split_head(network)[0], layout)
    assert states.requires_grad
    return sum(each.untyped_storage().nbytes() for each in kept.values()), layout.ids.numel()


@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_with_an_adapter_is_that_of_peft(biased: bool) -> None:
    """Values and gradients; a layer that a user watches, and a plain one, are called."""
    network: Any = add_adapters(build("qwen2"), ModelSettings(name="x", lora_rank=3), 0).double()
    attention_layer = network.model.layers[0].self_attn
    layer = attention_layer.q_proj if biased else attention_layer.o_proj
    layer.lora_A["default"].weight.data.normal_()
    layer.lora_B["default"].weight.data.normal_()
    states = torch.randn(5, layer.in_features, dtype=torch.float64, requires_grad=True)
    inputs = states, layer.lora_A["default"].weight, layer.lora_B["default"].weight
    calls = []
    expected = layer(states)
    layer.forward = lambda given: (calls.append(1), type(layer).forward(layer, given))[1]
    watched = multiply_adapted(layer, states)
    del layer.forward
    found = multiply_adapted(layer, states)
    assert calls == [1]
    gradients = [torch.autograd.grad(each.sin().sum(), inputs) for each in (found, watched, expected)]
    for one, other in [(found, expected), (watched, expected), *zip(gradients[0], gradients[2], strict=True)]:
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    with disable_adapters(network):
        torch.testing.assert_close(multiply_adapted(layer, states), layer.get_base_layer()(states))
    torch.testing.assert_close(multiply_adapted(layer.get_base_layer(), states), layer.get_base_layer()(states))
    assert torch.autograd.gradcheck(lambda *given: multiply_adapted(layer, given[0]), (states,))


def test_which_layers_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a Llama-like model on a device that has them; not those that a user watches or has changed."""
    monkeypatch.setattr(own_layers, "suits_kernels", lambda _: True)
    body = build("qwen3", num_hidden_layers=2).model
    assert prepare_fused_layers(body)
    hook = body.layers[0].mlp.register_forward_hook(lambda *_: None)
    assert not prepare_fused_layers(body)
    hook.remove()
    hook = body.norm.register_full_backward_hook(lambda *_: None)  # which is not replaced
    assert prepare_fused_layers(body)
    hook.remove()
    hook = body.layers[1].self_attn.register_full_backward_hook(lambda *_: None)
    assert not prepare_fused_layers(body)
    hook.remove()
    for place, name, other in (("mlp", "act_fn", nn.GELU()), ("self_attn", "q_norm", nn.RMSNorm(16))):
        part = getattr(body.layers[0], place)
        usual = getattr(part, name)
        setattr(part, name, other)
        assert not prepare_fused_layers(body)
        setattr(part, name, usual)
    assert prepare_fused_layers(body)
    body.layers[0].self_attn = nn.Identity()
    assert not prepare_fused_layers(body)
    changed = build("qwen2").model
    changed.layers[0].forward = lambda *_: None
    assert not prepare_fused_layers(changed)
    monkeypatch.undo()
    assert not prepare_fused_layers(build("qwen2").model)  # on a CPU


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("name", "rank"), [("qwen2", 0), ("qwen3", 0), ("mistral", 0), ("qwen3", 2)])
def test_layers_on_a_device_are_those_of_transformers(
    name: str, rank: int, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, whose rounding differs between the two."""
    device = torch.device("cuda", torch.cuda.current_device())
    settings = ModelSettings(name="x", precision="bfloat16", gradient_checkpointing=checkpointing, lora_rank=rank)
    network: Any = build(name, num_hidden_layers=2, hidden_size=128, intermediate_size=192)
    network = prepare_model(add_adapters(network, settings, 0) if rank else network, settings, device)
    assert find_fault(device, torch.bfloat16) == ""
    with torch.autocast("cuda", torch.bfloat16):
        check(network, 0.06, monkeypatch, device_layers.suits_kernels)


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "mistral"])
def test_prompts_on_a_device_are_those_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(name, num_hidden_layers=2, hidden_size=128, intermediate_size=192).cuda()
    prompts, found = [(3, 4, 5), tuple(range(2, 20)), (5,)], []
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        assert prefill._can_compute_on_device(network)
        found.append(prefill.prefill(network, prompts, [NOTHING] * len(prompts))[2])
        monkeypatch.setattr(prefill, "_can_compute_on_device", lambda _: False)
        found.append(prefill.prefill(network, prompts, [NOTHING] * len(prompts))[2])
    assert (found[0] - found[1]).float().norm() <= 0.03 * found[1].float().norm()
