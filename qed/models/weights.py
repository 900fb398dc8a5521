"""A model's weights, read completely one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over several ranks."""
    # Only a DTensor has this method; torch.distributed itself is imported by the training code.
    return hasattr(tensor, "full_tensor")


def identify(tensor: Tensor) -> int:
    """Return a number that tensors in the same memory share; a sharded tensor may have no memory, so its own id."""
    return id(tensor) if is_sharded(tensor) else tensor.data_ptr() or id(tensor)


def gather(tensor: Tensor) -> Tensor:
    """Return the full tensor; if it is sharded, every rank must call this."""
    whole: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return whole


@dataclass(frozen=True)
class Source:
    """A weight of a model: its shape and dtype, and a function that returns it, a collective operation if sharded."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]
    sharded: bool

    @staticmethod
    def of(tensor: Tensor) -> Source:
        """Return a tensor as a source."""
        return Source(tuple(tensor.shape), tensor.dtype, lambda: gather(tensor), is_sharded(tensor))
