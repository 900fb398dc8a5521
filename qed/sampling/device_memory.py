"""Computes the bytes that training takes on a device from the weights and the settings, not from the memory in use.

So the result is the same before the first step, after it, and after the run was resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import torch
from torch import nn

from qed.config.settings import LearnerSettings


def count_weight_bytes(model: nn.Module, precision: torch.dtype = torch.float32) -> int:
    """Return the bytes of a model's weights and buffers, and of the copies of trained weights that autocast keeps."""
    tensors = {tensor.data_ptr(): tensor for tensor in chain(model.parameters(), model.buffers())}
    cast = precision.itemsize if precision == torch.bfloat16 else 0
    return sum(tensor.nbytes + tensor.numel() * cast * tensor.requires_grad for tensor in tensors.values())


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
