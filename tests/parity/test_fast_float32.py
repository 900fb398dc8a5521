"""Linear layers computed by oneDNN have the outputs and gradients of torch's own, to float32's rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qed.models import fast_float32
from qed.models.fast_float32 import compute_batches_in, multiply

pytestmark = pytest.mark.skipif(not torch._C._has_mkldnn, reason="This torch has no oneDNN.")


@pytest.fixture
def _faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose oneDNN on processors where it is not faster, too."""
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
@pytest.mark.parametrize("rows", [3, 300])
def test_products_of_views_are_as_exact_as_float32(rows: int) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(128, rows).T, torch.randn(70, 128)
    for one, other in ((left, right), (right, left), (left, left)):
        torch.testing.assert_close(multiply(one, other).double(), one.double() @ other.double().T, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_faster")
def test_no_setting_of_the_process_is_changed() -> None:
    """What other threads compute meanwhile has the same bits."""
    layer, given = nn.Linear(48, 31), torch.randn(99, 48, requires_grad=True)
    seen = []

    class Seeing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, states: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_float32_matmul_precision())
            return states.clone()

        @staticmethod
        def backward(ctx: object, slope: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_float32_matmul_precision())
            return slope

    with compute_batches_in("cpu", torch.float32):
        layer(Seeing.apply(layer(given)[:, :1].expand(-1, 48))).sum().backward()
    assert seen == ["highest", "highest"]
