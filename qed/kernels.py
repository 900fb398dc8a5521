"""How this process computes: its threads, and the precision of products of float32 matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from qed import machine


def use(threads: int, matmul_precision: str) -> None:
    """Compute in this way from now on; 0 threads stand for the physical cores that this process may use."""
    torch.set_num_threads(threads or machine.threads())
    torch.set_float32_matmul_precision(matmul_precision)
    # Operators are not run beside each other here, so a second pool of threads would only be in the way. Once work has
    # begun in it, its size is what it is.
    with suppress(RuntimeError):
        torch.set_num_interop_threads(1)


@contextmanager
def kept() -> Iterator[None]:
    """Compute afterwards as before, so that the next run of this process begins as this one did."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        use(*before)
