"""Moves tensors between a device and the host's memory in place, so that everything that holds them sees them there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from qed.guards.out_of_memory import free_cache
from qed.training.slices import get_local

Places = list[tuple[Tensor, torch.device]]  # tensors, and the devices to which they return


@torch.no_grad()
def move_to_host(tensors: Iterable[Tensor]) -> Places:
    """Move tensors to the host, and free their memory on the device; those that are on the host stay as they are.

    Of a sharded tensor the rows of this process move, which is where it has its memory.
    """
    moved: Places = []
    for tensor in map(get_local, tensors):
        if tensor.device.type != "cpu":
            moved.append((tensor, tensor.device))
            host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            tensor.data = host.copy_(tensor.data)
    free_cache()
    return moved


def move_back(places: Places) -> None:
    """Move tensors back to their devices; the bits are those that `move_to_host` found."""
    for tensor, device in places:
        tensor.data = tensor.data.to(device)


@contextmanager
def lend_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Compute with a model of the host on a device within the context; its weights on the host are kept meanwhile."""
    tensors = [tensor for tensor in chain(model.parameters(), model.buffers()) if tensor.device != device]
    hosted = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.to(device)
        yield
    finally:
        for tensor, data in zip(tensors, hosted, strict=True):
            tensor.data = data
        if tensors:
            free_cache()
