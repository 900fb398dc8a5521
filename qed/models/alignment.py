"""Tests whether the bits of a matrix product depend on the memory alignment of its operands, as MKL permits."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from qed import host

SHIFTS = 16  # in elements: 64 bytes, the widest alignment of any kernel, hold 16 float32 values


def depends_on_alignment() -> bool:
    """Test whether the bits of a float32 matrix product depend on the memory alignment of its operands.

    It multiplies a few small matrices at every alignment, so True is certain, but False is not.
    """
    shapes = [(rows, inner) for rows in (1, 2) for inner in (64, 100)]
    return any(len({_multiply_shifted(*shape, shift) for shift in range(SHIFTS)}) > 1 for shape in shapes)


def _multiply_shifted(rows: int, inner: int, shift: int) -> bytes:
    """Compute the bytes of a product whose left operand starts `shift` elements after an aligned address."""
    size = rows * inner
    memory = torch.empty(size + 2 * SHIFTS)
    start = (-memory.data_ptr() % 64) // memory.element_size() + shift
    left = memory[start : start + size].view(rows, inner)
    left.copy_(torch.arange(size).sin().view(rows, inner))
    right = torch.arange(inner * inner).cos().view(inner, inner)
    product = torch.nn.functional.linear(left, right)
    return bytes(product.view(torch.uint8).flatten().tolist())


def has_mkl() -> bool:
    """Return whether torch multiplies matrices on the CPU with MKL."""
    is_available: Callable[[], bool] = torch.backends.mkl.is_available
    return is_available()


def read_mkl_mode() -> str | None:
    """Return the value of MKL_CBWR; None if it is not set or torch does not use MKL."""
    return os.environ.get(host.MKL_MODE) if has_mkl() else None


def explain_alignment() -> str:
    """Describe the effect of memory alignment on this machine, and how to avoid it."""
    effect = "Products of matrices depend on memory alignment here, so a resumed run may differ in the last bits from "
    effect += "an uninterrupted one."
    if not has_mkl():
        return effect
    if read_mkl_mode() != host.REPRODUCIBLE:
        return f"{effect} {host.MKL_MODE} is {read_mkl_mode()}: unset it, or set it to {host.REPRODUCIBLE}."
    return (
        f"{effect} torch computed a product before qed began: set {host.MKL_MODE}={host.REPRODUCIBLE} in the "
        "environment, or call qed.host.make_products_reproducible() first."
    )
