"""Whether the bits of a product of matrices depend on where its operands lie in memory, as MKL lets them."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from qed import host

SHIFTS = 16  # elements; 64 bytes, the widest alignment that a kernel asks for, are 16 numbers of float32


def depends_on_alignment() -> bool:
    """Whether the bits of a product of float32 matrices depend on where its operands lie in memory.

    It multiplies a few small matrices at every alignment, so True is certain and False is not proven.
    """
    shapes = [(rows, inner) for rows in (1, 2) for inner in (64, 100)]
    return any(len({_bits(*shape, shift) for shift in range(SHIFTS)}) > 1 for shape in shapes)


def _bits(rows: int, inner: int, shift: int) -> bytes:
    """The bytes of a product whose left operand begins so many elements behind an aligned address."""
    size = rows * inner
    memory = torch.empty(size + 2 * SHIFTS)
    start = (-memory.data_ptr() % 64) // memory.element_size() + shift
    left = memory[start : start + size].view(rows, inner)
    left.copy_(torch.arange(size).sin().view(rows, inner))
    right = torch.arange(inner * inner).cos().view(inner, inner)
    product = torch.nn.functional.linear(left, right)
    return bytes(product.view(torch.uint8).flatten().tolist())


def has_mkl() -> bool:
    """Whether torch multiplies matrices on the CPU with MKL."""
    is_available: Callable[[], bool] = torch.backends.mkl.is_available
    return is_available()


def read_mkl_mode() -> str | None:
    """What MKL_CBWR says; None where it is not set or torch computes without MKL."""
    return os.environ.get(host.MKL_MODE) if has_mkl() else None


def explain_alignment() -> str:
    """What it means that alignment matters, and what helps."""
    told = "Products of matrices depend on memory alignment here, so a resumed run may differ in the last bits from an "
    told += "uninterrupted one."
    if not has_mkl():
        return told
    if read_mkl_mode() != host.REPRODUCIBLE:
        return f"{told} {host.MKL_MODE} is {read_mkl_mode()}: unset it, or set it to {host.REPRODUCIBLE}."
    return (
        f"{told} torch computed a product before qed began: set {host.MKL_MODE}={host.REPRODUCIBLE} in the "
        "environment, or call qed.host.make_products_reproducible() first."
    )
