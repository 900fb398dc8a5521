"""The gradient of the weight of a linear layer, on CPUs with AMX (see `has_tile_products`).

The factors are bfloat16, the sums are float32, and nothing depends on the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qed.kernels.functions import call_function


def compute_weight_gradient(slopes: Tensor, states: Tensor) -> Tensor:
    """Compute slopes.T @ states, [O, I] float32.

    Args:
        slopes: [N, O] bfloat16, the gradient of the layer's output.
        states: [N, I] bfloat16, the layer's input.
    """
    found = states.new_empty(slopes.shape[1], states.shape[1], dtype=torch.float32)
    if not len(states):
        return found.zero_()
    _call(slopes, None, states, False, found)
    return found


def add_weight_gradient(total: Tensor, slopes: Tensor, lost: Tensor, states: Tensor) -> None:
    """Add (slopes + lost).T @ states to a total.

    Args:
        total: [O, I] float32, contiguous.
        slopes: [N, O] bfloat16.
        lost: [N, O] bfloat16, the rounding errors of the slopes, see `split_slopes`.
        states: [N, I] bfloat16.
    """
    _call(slopes, lost.contiguous(), states, True, total)


def split_slopes(slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradients rounded to bfloat16, and their rounding errors, also rounded: 16 bits of precision together."""
    rounded = slopes.to(torch.bfloat16)
    return rounded, (slopes - rounded).to(torch.bfloat16)


def _call(slopes: Tensor, lost: Tensor | None, states: Tensor, adds: bool, out: Tensor) -> None:
    slopes, states = slopes.contiguous(), states.contiguous()
    sizes = *slopes.shape, states.shape[1]
    call_function("weight_gradient", slopes.dtype, slopes, lost, states, *sizes, adds, torch.get_num_threads(), out)
