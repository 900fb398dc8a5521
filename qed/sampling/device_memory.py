"""Bytes that training takes on a device, worked out from the weights and the settings and not from what is free now.

So they are the same whenever a run is made: before its first step, after it, and after it was resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import torch
from torch import nn

from qed.config.settings import LearnerSettings


def count_weight_bytes(model: nn.Module, precision: torch.dtype = torch.float32) -> int:
    """Return the bytes of a model's weights and buffers, and of the copies of trained weights that autocast keeps."""
    tensors = {one.data_ptr(): one for one in chain(model.parameters(), model.buffers())}
    cast = precision.itemsize if precision != torch.float32 else 0
    return sum(one.nbytes + one.numel() * cast * one.requires_grad for one in tensors.values())


def count_training_bytes(parameters: Iterable[nn.Parameter], settings: LearnerSettings) -> int:
    """Return the bytes of the gradients and of AdamW's two moments on the parameters' device."""
    total = 0
    for parameter in parameters:
        moments = 2 * parameter.nbytes
        if settings.optimizer == "adamw8bit":
            moments = 2 * parameter.numel()
        elif settings.optimizer == "adamw_offload" and parameter.is_cuda:
            moments = 0
        total += parameter.nbytes + moments
    return total
