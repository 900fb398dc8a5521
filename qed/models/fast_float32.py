"""Products of float32 matrices by oneDNN, on processors where torch's own choice leaves AVX-512 unused.

torch computes float32 products with MKL, which on AMD's processors uses AVX2 only; oneDNN takes half of the time there.
torch calls oneDNN if its float32 precision is "medium". That permits rounding to bfloat16, but oneDNN does so only with
AMX, which these processors do not have; `rounds` checks it. The small products inside of torch's attention kernels
become slower, so the precision is "medium" only while linear layers and large products are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qed import host
from qed.models.precision import compute_in

ROWS = 64  # from which on a product is worth the cost of preparing it
EXACT = 1e-5  # largest relative error of a product that was not rounded; bfloat16 has about 4e-3


@cache
def is_faster() -> bool:
    """Return whether oneDNN multiplies float32 matrices faster than MKL here, and as exactly."""
    return (
        torch._C._has_mkldnn
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and host.is_amd()
        and not rounds(torch.rand(ROWS, 256), torch.rand(256, 256))
    )


def rounds(left: Tensor, right: Tensor) -> bool:
    """Return whether a product of two float32 matrices by oneDNN is less exact than float32."""
    exact = left.double() @ right.double()
    with _allow_onednn():
        return bool(((left @ right - exact).abs() > EXACT * exact.abs().amax()).any())


def compute_batches_in(device: str, precision: torch.dtype, compiled: bool = False) -> AbstractContextManager[object]:
    """Return the context of `compute_in`, for passes over many tokens: linear layers in float32 by the faster library.

    Their backward passes do not need the context. Compiled layers are left as they are.
    """
    if precision == torch.float32 and device == "cpu" and not compiled and is_faster():
        return _FastLinear()
    return compute_in(device, precision)


def recompute_alike() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Return the contexts of a checkpointed forward pass and of its recomputation, which computes in the same way."""
    return nullcontext(), _FastLinear() if _FastLinear.active else nullcontext()


@contextmanager
def multiply_fast() -> Iterator[None]:
    """Compute all products of float32 matrices by the faster library; not for attention kernels."""
    with _allow_onednn() if is_faster() else nullcontext():
        yield


@contextmanager
def _allow_onednn() -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


class _FastLinear(TorchFunctionMode):
    """Computes linear layers of many rows by oneDNN."""

    active = 0  # how many are entered

    def __enter__(self) -> Any:
        _FastLinear.active += 1
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *args: Any) -> None:
        _FastLinear.active -= 1
        super().__exit__(*args)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, or `_Linear` in place of a large linear layer."""
        if func is nn.functional.linear and not kwargs and _is_large(*args[:2]):
            return _Linear.apply(*args, *(None,) * (3 - len(args)))
        return func(*args, **(kwargs or {}))


def _is_large(states: Any, weight: Any) -> bool:
    # Weights of other types, such as quantized or sharded ones, compute by themselves.
    plain = type(states) is Tensor and type(weight) in (Tensor, nn.Parameter)
    return (
        plain
        and states.dtype == weight.dtype == torch.float32
        and states.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and states.numel() >= ROWS * states.shape[-1]
    )


class _Linear(torch.autograd.Function):
    """A linear layer whose backward pass multiplies by the same library; arguments as `nn.functional.linear`."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the layer's output."""
        ctx.save_for_backward(states, weight)
        with _allow_onednn():
            return nn.functional.linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of what needs one."""
        states, weight = ctx.saved_tensors
        for_states, for_weight, for_bias = ctx.needs_input_grad
        flat = slope.flatten(0, -2)
        with _allow_onednn():
            return (
                slope @ weight if for_states else None,
                flat.T @ states.flatten(0, -2) if for_weight else None,
                flat.sum(0) if for_bias else None,
            )
