"""The weights of a model, whole one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is spread over several ranks."""
    # Only a DTensor has this method; torch.distributed itself is imported by the training code.
    return hasattr(tensor, "full_tensor")


def identify(tensor: Tensor) -> int:
    """Return a number that tensors in the same memory share; the identity of a sharded one, which may have none."""
    return id(tensor) if is_sharded(tensor) else tensor.data_ptr() or id(tensor)


def gather(tensor: Tensor) -> Tensor:
    """Return a tensor whole; every rank must call this if it is sharded."""
    whole: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return whole


@dataclass(frozen=True)
class Source:
    """A weight of a model: its shape and dtype, and how to get it whole, which is a collective if it is sharded."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]
    sharded: bool

    @staticmethod
    def of(tensor: Tensor) -> Source:
        """Return a tensor as a source."""
        return Source(tuple(tensor.shape), tensor.dtype, lambda: gather(tensor), is_sharded(tensor))
