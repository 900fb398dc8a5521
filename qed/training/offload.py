"""Moves tensors between a device and host memory in place, so that all references to them stay valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from qed.guards.out_of_memory import free_cache
from qed.training.slices import get_local

Places = list[tuple[Tensor, torch.device]]  # tensors, and the devices that they return to


@torch.no_grad()
def move_to_host(tensors: Iterable[Tensor]) -> Places:
    """Move tensors to the host, and free their memory on the device; tensors already on the host are unchanged.

    Of a sharded tensor, only the rows of this process move, because it holds no others.
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
    """Move tensors back to their devices, bit for bit."""
    for tensor, device in places:
        tensor.data = tensor.data.to(device)


@contextmanager
def lend_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Within the context, keep a host model on a device; its weights also stay on the host."""
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
