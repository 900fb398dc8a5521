"""The last layer gives the same where it leaves out the inputs whose output nobody reads."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from families import make_family
from test_packing import rows_with_shared_prompts
from torch import Tensor, nn

from qed.models.families import split_head
from qed.models.own_layers import LLAMA_LIKE, read_part
from qed.sampling.native.kept import NOTHING
from qed.sampling.native.prefill import prefill
from qed.training.attention import use_packed_attention
from qed.training.logps import compute_logps
from qed.training.packing import pack_batch

PLACES = torch.tensor([1])
PROMPTS = [(5, 6, 7, 8, 9), (4, 3), (9, 9, 9, 2)]


def make_network(family: str = "qwen2") -> Any:
    return make_family(family).double()


def compute(network: Any) -> tuple[Tensor, Tensor]:
    """The log-probs and entropies of packed rows, and their gradients."""
    batch = rows_with_shared_prompts()
    network.zero_grad()
    with use_packed_attention(network.config):
        logps, entropy = compute_logps(network, batch, 0.8, pack_batch(batch))
        (logps.sin() + entropy).sum().backward()
    gradients = [one.grad.flatten() for one in network.parameters() if one.grad is not None]
    return torch.stack([logps, entropy]).detach(), torch.cat(gradients)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_packed_rows(family: str, checkpointing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network(family)
    if checkpointing:
        network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        network.train()
    widths: list[int] = []
    network.base_model.layers[-1].mlp.register_forward_hook(lambda *passed: widths.append(passed[1][0].shape[1]))
    monkeypatch.setattr("qed.training.attention.READ_SHARE", 0)
    expected = compute(network)
    monkeypatch.setattr("qed.training.attention.READ_SHARE", 1)
    found = compute(network)
    assert min(widths) < 0.7 * max(widths)
    for one, other in zip(found, expected, strict=True):
        # The norms and rotations of these models are float32 whatever the weights are.
        assert (one - other).norm() <= 1e-6 * other.norm()


@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_prompts_of_the_sampler(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network(family)
    with torch.no_grad():
        cache, _, logits = prefill(network, PROMPTS, [NOTHING] * 3)
        monkeypatch.setattr("qed.sampling.native.prefill.read_part", lambda *_: None)
        whole, _, expected = prefill(network, PROMPTS, [NOTHING] * 3)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    width = max(map(len, PROMPTS))  # behind it is room for answers, with whatever was there
    for one, other in zip(cache.layers, whole.layers, strict=True):
        torch.testing.assert_close(one.keys[:, :, :width], other.keys[:, :, :width])
        torch.testing.assert_close(one.values[:, :, :width], other.values[:, :, :width])


def test_a_copy_has_a_last_layer_of_its_own() -> None:
    """Copies by `copy` and by `pickle`: changing their weights does not change the first one, nor the reverse."""
    network = make_network()
    expected = compute(network)[0]
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        with torch.no_grad():
            other.base_model.layers[-1].mlp.up_proj.weight.zero_()
        assert not torch.allclose(compute(other)[0], expected)
    assert torch.equal(compute(network)[0], expected)


def test_a_decoder_may_lose_layers_or_share_them() -> None:
    """The last layer is that of the decoder which computes."""
    network, batch = make_network(), rows_with_shared_prompts()
    compute(network)
    shorter = copy.deepcopy(network)
    shorter.base_model.layers = network.base_model.layers[:1]
    fresh = copy.deepcopy(shorter)
    for layer in fresh.base_model.layers:
        vars(layer).pop("forward", None)
    found, expected = (compute_logps(each, batch, 0.8, pack_batch(batch)) for each in (shorter, fresh))
    torch.testing.assert_close(found, expected)
    assert torch.equal(compute(network)[0], compute(copy.deepcopy(network))[0])


def test_a_model_ends_with_its_last_name() -> None:
    """Without waiting for a search for garbage."""
    network = make_network()
    compute(network)
    weight = weakref.ref(network.base_model.layers[-1].mlp.up_proj.weight)
    gc.disable()
    try:
        del network
        assert weight() is None
    finally:
        gc.enable()


def test_layers_that_are_not_known_are_left_alone() -> None:
    """Other families, a compiled decoder, a module around one, and a layer whose forward pass somebody replaced."""
    for family in ("gemma2", "granite", "gpt2", "qwen2_moe", "cohere"):
        assert read_part(split_head(make_family(family))[0], PLACES) is None, family
    compiled = make_network().base_model
    compiled.compile()
    replaced = make_network().base_model
    replaced.layers[-1].forward = nn.Identity()
    assert read_part(compiled, PLACES) is None
    assert read_part(replaced, PLACES) is None
    assert read_part(make_network(), PLACES) is None
    assert read_part(nn.Linear(2, 2), PLACES) is None
