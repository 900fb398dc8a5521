"""Linear layers computed by oneDNN have the outputs and gradients of torch's own, to float32's rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qed.models import fast_float32
from qed.models.fast_float32 import compute_batches_in, multiply_fast

pytestmark = pytest.mark.skipif(not torch._C._has_mkldnn, reason="This torch has no oneDNN.")


@pytest.fixture
def _faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose oneDNN on processors where it is not faster, too, but not where it rounds to bfloat16."""
    if fast_float32.rounds(torch.rand(64, 64), torch.rand(64, 64)):
        pytest.skip("oneDNN rounds float32 products to bfloat16 here.")
    monkeypatch.setattr(fast_float32, "is_faster", lambda: True)


@pytest.mark.usefixtures("_faster")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(200, 48), (3, 70, 48), (2, 48)])
def test_outputs_and_gradients(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, found = nn.Linear(48, 31, bias=bias), []
    given, slope = torch.randn(*shape, requires_grad=True), torch.randn(*shape[:-1], 31)
    for precision in (torch.float64, torch.float32):  # float64 has no oneDNN
        with compute_batches_in("cpu", precision):
            output = layer(given)
        found.append((output, *torch.autograd.grad(output, [given, *layer.parameters()], slope)))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("_faster")
def test_frozen_weights_get_no_gradient() -> None:
    layer, given = nn.Linear(48, 31).requires_grad_(False), torch.randn(99, 48, requires_grad=True)
    with compute_batches_in("cpu", torch.float32):
        layer(given).sum().backward()
    assert given.grad is not None
    assert layer.weight.grad is None


@pytest.mark.usefixtures("_faster")
def test_the_precision_is_restored() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ValueError, match="too large"), multiply_fast():
        _refuse(torch.get_float32_matmul_precision())
    assert torch.get_float32_matmul_precision() == before


def _refuse(precision: str) -> None:
    assert precision == "medium"
    raise ValueError("too large")


def test_products_are_as_exact_as_float32() -> None:
    """Where oneDNN is chosen, no operand is rounded to bfloat16."""
    torch.manual_seed(0)
    left, right = torch.randn(300, 128), torch.randn(128, 70)
    with multiply_fast():
        product = left @ right
    torch.testing.assert_close(product.double(), left.double() @ right.double(), rtol=1e-4, atol=1e-4)
