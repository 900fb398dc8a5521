"""The gradient of the weight of a linear layer, on processors with AMX (see `has_weight_gradient`).

Numbers of products are bfloat16, sums are float32, and nothing depends on the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qed.kernels.functions import call_function


def compute_weight_gradient(slopes: Tensor, states: Tensor) -> Tensor:
    """Compute slopes.T @ states, [O, I] float32.

    Args:
        slopes: [N, O] bfloat16, the gradient of what the layer computes.
        states: [N, I] bfloat16, what it reads.
    """
    found = states.new_empty(slopes.shape[1], states.shape[1], dtype=torch.float32)
    if not len(states):
        return found.zero_()
    _call(slopes.contiguous(), states.contiguous(), slopes.shape[1], False, found)
    return found


def add_weight_gradient(total: Tensor, slopes: Tensor, states: Tensor) -> None:
    """Add slopes @ states to a total.

    Args:
        total: [O, I] float32, contiguous.
        slopes: [O, N] float32; 16 binary digits of each are multiplied.
        states: [N, I] bfloat16.
    """
    _call(slopes.contiguous(), states.contiguous(), len(slopes), True, total)


def _call(slopes: Tensor, states: Tensor, outputs: int, adds: bool, out: Tensor) -> None:
    sizes = len(states), outputs, states.shape[1]
    call_function("weight_gradient", slopes.dtype, slopes, states, *sizes, adds, torch.get_num_threads(), out)
