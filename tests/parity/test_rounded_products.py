"""Products in bfloat16 by products in float32 of the same numbers, where a processor has no instructions for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from making import make_model
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from qed.config.settings import ModelSettings
from qed.models import fast_float32, precision, rounded_products
from qed.models.fast_float32 import add_multiplied, multiply, multiply_columns
from qed.models.load import prepare_model
from qed.models.precision import compute_in
from qed.models.rounded_products import RoundedProducts
from qed.sampling.native import projection
from qed.sampling.native.projection import Projections, Rounded

STEP = 2.0**-8  # the largest relative error of a number that is rounded to bfloat16


@pytest.fixture(autouse=True)
def without_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor without instructions for bfloat16, whichever this one is."""
    for module in (rounded_products, precision, projection):
        monkeypatch.setattr(module, "lacks_bfloat16", lambda: True)
    monkeypatch.setattr(projection, "has_tile_products", lambda: False)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def round_twice(*tensors: Tensor) -> list[Tensor]:
    """Numbers of bfloat16 in float64."""
    return [each.to(torch.bfloat16).double() for each in tensors]


def assert_rounded(found: Tensor, exact: Tensor) -> None:
    """Within a rounding of the exact result, up to the sums in float32."""
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=STEP, atol=1e-5)


def test_products_are_those_of_float64_rounded_once() -> None:
    left, right, bias = draw(9, 40), draw(11, 40, seed=1), draw(11, seed=2)
    wide, other, added = round_twice(left, right, bias)
    halves = [each.to(torch.bfloat16) for each in (left, right, bias)]
    assert_rounded(multiply(*halves), wide @ other.T + added)
    assert_rounded(multiply(halves[0], halves[1].T.contiguous().T), wide @ other.T)
    assert_rounded(multiply_columns(halves[0].T.contiguous(), halves[1].T.contiguous()), wide @ other.T)
    total = draw(9, 11, seed=3).to(torch.bfloat16)
    before = total.double()
    add_multiplied(total, halves[0], halves[1].T)
    assert_rounded(total, before + wide @ other.T)


def apply_linear(states: Tensor, weight: Tensor) -> Tensor:
    return linear(states, weight, weight[:, 0])


def attend(states: Tensor, weight: Tensor) -> Tensor:
    heads = states.view(2, 3, 5, -1)
    return scaled_dot_product_attention(heads, heads + 1, weight[:3, None, :8] * heads, is_causal=True)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": apply_linear,
    "layer": lambda states, weight: nn.functional.linear(input=states, weight=weight),
    "@": lambda states, weight: states @ weight.T,
    "matmul": lambda states, weight: torch.matmul(states, weight.T),
    "bmm": lambda states, weight: states.bmm(weight.T.expand(len(states), -1, -1)),
    "baddbmm": lambda states, weight: torch.baddbmm(
        states[:, :, :1], states, weight.T.expand(len(states), -1, -1), alpha=0.5
    ),
    "attention": attend,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_computed_and_its_gradients_are_near_autocast(name: str) -> None:
    """Which rounds the same numbers, and in backward passes those between them."""
    found = []
    for context in (lambda: torch.autocast("cpu", dtype=torch.bfloat16), lambda: compute_in("cpu", torch.bfloat16)):
        states, weight = draw(6, 5, 8).requires_grad_(), draw(7, 8, seed=1).requires_grad_()
        with context():
            out = FUNCTIONS[name](states, weight)
        assert out.dtype == torch.bfloat16
        (out.float() * draw(*out.shape, seed=2)).sum().backward()
        found.append([out.detach(), states.grad, weight.grad])
    for own, other in zip(*found, strict=True):
        assert own is not None
        assert other is not None
        assert own.dtype == other.dtype
        assert float((own.float() - other.float()).norm() / other.float().norm()) < 2 * STEP


def test_other_products_are_as_they_were() -> None:
    """Without autocast, of other precisions, and where a result is written into a tensor."""
    left, right = draw(4, 8), draw(8, 3, seed=1)
    with compute_in("cpu", torch.bfloat16):
        assert torch.equal(left.double() @ right.double(), torch.matmul(left.double(), right.double()))
        with torch.autocast("cpu", enabled=False):
            found = left @ right
            assert (left.to(torch.bfloat16) @ right.to(torch.bfloat16)).dtype == torch.bfloat16
        into = torch.empty(4, 3)
        with torch.autocast("cpu", enabled=False):
            torch.matmul(left, right, out=into)
    assert torch.equal(found, left @ right)
    assert torch.equal(into, found)


def test_a_checkpointed_layer_is_computed_again_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.models.load.lacks_bfloat16", lambda: True)
    calls: list[str] = []
    own = rounded_products._compute_layer
    monkeypatch.setattr(rounded_products, "_compute_layer", lambda *args: (calls.append("layer"), own(*args))[1])
    settings = ModelSettings(gradient_checkpointing=True, precision="bfloat16")
    model = prepare_model(make_model(dtype=torch.float32), settings, torch.device("cpu"))
    with fast_float32.compute_batches_in("cpu", torch.bfloat16):
        logits = model(input_ids=torch.tensor([[3, 4, 5]])).logits
    forward = len(calls)
    logits.float().sum().backward()
    assert forward == 2 * 7 + 1
    assert len(calls) == forward + 2 * 7  # all but the output layer


def test_a_compiled_body_gets_plain_autocast() -> None:
    with fast_float32.compute_batches_in("cpu", torch.bfloat16, compiled=True):
        modes: list[Any] = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        assert not any(isinstance(mode, RoundedProducts) for mode in modes)
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16


@pytest.mark.skipif(not projection.has_kernels(), reason="there is no C++ compiler")
def test_a_decoding_step_rounds_states_weights_and_results() -> None:
    model = make_model(dtype=torch.float32, hidden_size=64)
    with compute_in("cpu", torch.bfloat16):
        projections = Projections(model)
        layer = model.model.layers[0]
        take = projections.take(layer.self_attn.o_proj)
        joined = projections.join(layer.mlp.gate_proj, layer.mlp.up_proj)
    assert type(take) is Rounded
    assert projections.copied_bytes == 4 * sum(weight.numel() for weight in model.parameters())
    states = draw(5, 64)
    for found, weight in zip(
        [take(states), *joined(states)],
        [layer.self_attn.o_proj.weight, layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight],
        strict=True,
    ):
        wide, other = round_twice(states, weight.detach())
        assert_rounded(found, wide @ other.T)
