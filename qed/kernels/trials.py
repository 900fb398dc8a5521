"""Try kernels on a small problem: how far they are from torch's own operations, and why one fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from qed.errors import is_out_of_memory


def try_kernels(name: str, compute: Callable[[], Iterable[tuple[Tensor, Tensor]]], largest: float) -> str:
    """Return why kernels must not be used, and warn about it; "" if they work.

    Args:
        name: the kernels' name in the warning.
        compute: returns pairs of a kernel's result and the expected result.
        largest: the largest relative error of working kernels.

    Raises:
        RuntimeError: memory ran out.
    """
    try:
        error = measure_error(compute())
    except Exception as failure:  # noqa: BLE001 -- a compiler fails in many ways
        reason = describe_failure(failure)
    else:
        reason = "" if error <= largest else f"they are wrong by {error:.2g}"
    if reason:
        warnings.warn(f"{name} are not used: {reason}", stacklevel=3)
    return reason


def measure_error(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the largest relative error of tensors compared with the expected ones; NaN if any is."""
    errors = [(found.float() - wanted.float()).norm() / wanted.float().norm() for found, wanted in pairs]
    return float(torch.stack(errors).max())  # unlike Python's, this maximum of a NaN is NaN


def describe_failure(error: BaseException) -> str:
    """Return the type and the first line of an error that a compiler or a kernel raised.

    Raises:
        BaseException: the error itself if memory ran out, which may be temporary.
    """
    if is_out_of_memory(error):
        raise error
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
