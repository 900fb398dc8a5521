"""bfloat16 products on CPUs without instructions for them, by float32 products of the same numbers.

There torch uses its own loops, at a hundredth to a quarter of the speed of float32. Every bfloat16 number is also a
float32 number, so float32 gives the same product: sums are in float32 in both cases, and the result is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Products besides linear layers, whose gradients torch computes in float32.
PRODUCTS = {
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.mm,
    torch.Tensor.mm,
    torch.bmm,
    torch.Tensor.bmm,
    torch.addmm,
    torch.baddbmm,
    nn.functional.scaled_dot_product_attention,
}


@cache
def lacks_bfloat16() -> bool:
    """Return whether this CPU lacks the bfloat16 instructions that torch's products use."""
    known = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
    return known and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def must_widen(*operands: Tensor) -> bool:
    """Return whether a product's operands are in bfloat16 and this CPU has no instructions for it."""
    return all(each.dtype == torch.bfloat16 and each.device.type == "cpu" for each in operands) and lacks_bfloat16()


def multiply_widened(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute left @ right.T + bias in float32 and round it, [n, m] from [n, k] and [m, k], without a gradient."""
    with torch.autocast("cpu", enabled=False):
        wide = left.float() @ right.float().T
        return (wide if bias is None else wide.add_(bias)).to(torch.bfloat16)


def add_widened(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute total += left @ right in float32 and round it, [n, m] from [n, k] and [k, m], without a gradient."""
    with torch.autocast("cpu", enabled=False):
        total.copy_(total.float().addmm_(left.float(), right.float()))


@contextmanager
def compute_rounded() -> Iterator[None]:
    """Compute as under bfloat16 autocast, with float32 products of numbers rounded to bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16), RoundedProducts():
        yield


class RoundedProducts(TorchFunctionMode):
    """Computes bfloat16 products in float32 from rounded numbers, and rounds the results."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function; replace a product with one of rounded numbers."""
        kwargs = kwargs or {}
        if func is nn.functional.linear and _is_bfloat16([*args, *kwargs.values()]):
            return _compute_layer(*args, **kwargs)
        if func in PRODUCTS and "out" not in kwargs and _is_bfloat16([*args, *kwargs.values()]):
            with torch.autocast("cpu", enabled=False):
                wide = func(*map(_widen, args), **{name: _widen(value) for name, value in kwargs.items()})
            return wide.to(torch.bfloat16)
        return func(*args, **kwargs)


def _is_bfloat16(values: list[Any]) -> bool:
    """Return whether a product of these values would be in bfloat16: plain tensors on CPU, with or without autocast."""
    tensors = [value for value in values if isinstance(value, Tensor) and value.dtype != torch.bool]
    kinds = (torch.float32, torch.bfloat16) if torch.is_autocast_enabled("cpu") else (torch.bfloat16,)
    # Weights of other types, such as quantized or sharded ones, use their own products.
    return all(
        type(each) in (Tensor, nn.Parameter) and each.dtype in kinds and each.device.type == "cpu" for each in tensors
    )


def _widen(value: Any) -> Any:
    """Round a floating-point tensor to bfloat16, in float32."""
    return value.to(torch.bfloat16).float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _compute_layer(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute a linear layer; arguments are named as in torch."""
    rounded = [None if each is None else each.to(torch.bfloat16) for each in (weight, bias)]
    flat: Tensor = _Linear.apply(input.to(torch.bfloat16).reshape(-1, input.shape[-1]), *rounded)
    return flat.view(*input.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    """Computes x W^T + b, [n, m] from [n, k]: with g its gradient, dx = g W, dW = g^T x and db the sum of g's rows."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        return multiply_widened(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        for_states, for_weight, for_bias = ctx.needs_input_grad
        return (
            multiply_widened(slope, weight.T) if for_states else None,
            multiply_widened(slope.T, states.T) if for_weight else None,
            slope.sum(0) if for_bias else None,
        )
