"""Computes the memory that training needs on a device, in bytes, from the weights and settings.

The result does not depend on memory in use, so it is the same before the first step, after it, and after resuming.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn

from qed.config.settings import LearnerSettings


def count_weight_bytes(model: nn.Module, precision: torch.dtype = torch.float32) -> int:
    """Return the bytes of a model's weights and buffers, and of autocast's cached copies of trained weights."""
    tensors = {tensor.data_ptr(): tensor for tensor in chain(model.parameters(), model.buffers())}
    total = 0
    for tensor in tensors.values():
        casts = tensor.requires_grad and precision == torch.bfloat16 != tensor.dtype
        total += tensor.nbytes + tensor.numel() * precision.itemsize * casts
    return total


def count_training_bytes(parameters: Iterable[nn.Parameter], settings: LearnerSettings) -> int:
    """Return the bytes of gradients and AdamW state that stay on the parameters' device while the sampler runs."""
    total = 0
    for parameter in parameters:
        state = count_state_bytes(parameter, 1 if settings.optimizer == "adamw8bit" else None)
        hosted = settings.optimizer == "adamw_offload" or settings.offload_for_sampling
        total += _count_wide_bytes(parameter) + (0 if hosted and parameter.is_cuda else state)
    return total


def count_state_bytes(parameter: Tensor, moment: int | None = None) -> int:
    """Return the bytes of a parameter's AdamW state: two moments and, in half precision, a float32 master copy.

    `moment` is the bytes per element of a moment; None uses those of a gradient.
    """
    wide = _count_wide_bytes(parameter)
    moments = 2 * (wide if moment is None else moment * parameter.numel())
    return moments + (wide if wide > parameter.nbytes else 0)


def _count_wide_bytes(parameter: Tensor) -> int:
    """Return the bytes of a parameter's gradient, which is float32 if the parameter is in half precision."""
    return parameter.numel() * max(parameter.dtype.itemsize, torch.float32.itemsize)
