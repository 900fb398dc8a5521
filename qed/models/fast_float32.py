"""Float32 linear layers by oneDNN, on CPUs where torch's own choice leaves AVX-512 unused.

torch computes float32 products with MKL, which uses only AVX2 on AMD CPUs; there oneDNN takes half the time. The choice
of library depends only on the CPU and the sizes, and no process-wide setting is changed, so other threads still compute
bit-identical results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qed import host
from qed.kernels.functions import has_tile_products
from qed.kernels.weight_gradient import compute_weight_gradient
from qed.models.precision import compute_in
from qed.models.rounded_products import RoundedProducts, add_widened, multiply_widened, must_widen

NARROW = 4  # a matrix is narrow if it has at least this many rows per column
ROWS = 64  # fewest rows for which a product is worth its preparation


@cache
def is_faster() -> bool:
    """Return whether oneDNN multiplies float32 matrices faster than torch's default on this CPU."""
    has_products = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_products and torch.backends.cpu.get_cpu_capability() == "AVX512" and host.is_amd()


def multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute left @ right.T + bias, [n, m] from [n, k] and [m, k], without a gradient; views may be transposed."""
    if must_widen(left, right):
        return multiply_widened(left, right, bias)
    if is_faster() and _is_large(left, right):
        return _multiply(left, right, bias)
    return left @ right.T if bias is None else torch.addmm(bias, left, right.T)


def multiply_columns(left: Tensor, right: Tensor) -> Tensor:
    """Compute left.T @ right, [n, m] from [k, n] and [k, m], without a gradient."""
    # oneDNN is a quarter faster if the product has at most as many rows as columns.
    if left.shape[1] <= right.shape[1] or not is_faster():
        return multiply(left.T, right.T)
    return multiply(right.T, left.T).T.contiguous()


def reverse_weight(slopes: Tensor, states: Tensor) -> Tensor:
    """Compute the gradient of a weight, slopes.T @ states, [m, k] float32 from [n, m] and [n, k] of one precision."""
    if slopes.dtype == torch.bfloat16 and has_tile_products():
        return compute_weight_gradient(slopes, states)
    return multiply_columns(slopes, states).to(torch.float32)


def add_multiplied(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute total += left @ right, [n, m] from [n, k] and [k, m], without a gradient."""
    if must_widen(total, left, right):
        add_widened(total, left, right)
    elif total.dtype == torch.float32 and is_faster():  # oneDNN does not add to a total
        swapped = not left.is_contiguous() and is_narrow(right)
        total.add_(multiply(right.T, left).T if swapped else multiply(left, right.T))
    else:
        total.addmm_(left, right)


def is_narrow(right: Tensor) -> bool:
    """Return whether `add_multiplied` adds the transpose of right.T @ left.T if `left` is a transposed view.

    oneDNN copies such a view before multiplying, which takes longer if `right` has few columns.
    """
    return NARROW * right.shape[1] <= len(right)


def compute_batches_in(device: str, precision: torch.dtype, compiled: bool = False) -> AbstractContextManager[object]:
    """Return the context of `compute_in`, for passes over many tokens: float32 linear layers use the faster library.

    Their backward passes do not need the context. Compiled layers are unchanged.
    """
    if precision == torch.float32 and device == "cpu" and not compiled and is_faster():
        return _FastLinear()
    if compiled and precision == torch.bfloat16:  # the compiler generates its own products
        return torch.autocast(device, dtype=precision)
    return compute_in(device, precision)


def recompute_alike() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Return the contexts of a checkpointed forward pass and its recomputation, which make both compute alike."""
    modes: list[Any] = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    kinds = [type(mode) for mode in modes if isinstance(mode, _FastLinear | RoundedProducts)]
    return nullcontext(), kinds[-1]() if kinds else nullcontext()


class _FastLinear(TorchFunctionMode):
    """Computes linear layers of many rows by oneDNN."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, or `_Linear` in place of a large linear layer."""
        if func is nn.functional.linear and not kwargs and _is_large(*args[:2]):
            return _compute_layer(*args)
        return func(*args, **(kwargs or {}))


def _compute_layer(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    flat: Tensor = _Linear.apply(states.flatten(0, -2), weight, bias)
    return flat.view(*states.shape[:-1], -1)


def _is_large(states: Any, weight: Any) -> bool:
    # Weights of other types, such as quantized or sharded ones, use their own products.
    plain = type(states) in (Tensor, nn.Parameter) and type(weight) in (Tensor, nn.Parameter)
    return (
        plain
        and states.dtype == weight.dtype == torch.float32
        and states.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and states.numel() >= ROWS * states.shape[-1]
    )


def _multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    """Computes x W^T + b, [n, m] from [n, k]: with g its gradient, dx = g W, dW = g^T x and db the sum of g's rows."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        return _multiply(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        for_states, for_weight, for_bias = ctx.needs_input_grad
        of_weight = multiply_columns(slope, states) if for_weight else None
        return _multiply(slope, weight.T) if for_states else None, of_weight, slope.sum(0) if for_bias else None
