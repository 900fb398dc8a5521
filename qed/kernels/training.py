"""The operations of an update on a processor in float32, forwards and backwards.

All tensors are contiguous. A slope is the gradient of the loss with respect to a tensor. What they compute does not
depend on the number of threads.
"""

from __future__ import annotations

from ctypes import byref
from typing import NamedTuple

import torch
from torch import Tensor

from qed.kernels.functions import find_function
from qed.kernels.structures import PackedAttention


class Normed(NamedTuple):
    """Results of `norm`."""

    states: Tensor  # [N, H], with the changes
    scales: Tensor  # [N]
    normed: Tensor  # [N, H]


class Rotation(NamedTuple):
    """How heads are rotated."""

    cos: Tensor  # [N, D], of the positions of the N inputs
    sin: Tensor  # [N, D]
    weight: Tensor | None  # [D], of the norm of each head before its rotation; None for no norm
    epsilon: float  # of that norm


def norm(states: Tensor, changes: Tensor | None, weight: Tensor, epsilon: float) -> Normed:
    """Compute RMSNorm (arXiv 1910.07467) of states, [N, H], plus changes, [N, H] or None."""
    sums = states if changes is None else torch.empty_like(states)
    scales, normed = states.new_empty(len(states)), torch.empty_like(states)
    sizes = *states.shape, torch.get_num_threads()
    _call("norm_forward", states, changes, weight, epsilon, *sizes, sums, scales, normed)
    return Normed(sums, scales, normed)


def reverse_norm(slopes: Tensor, found: Normed, weight: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the slopes of the states of `norm`, plus `added`, and of the weight, [N, H] and [H]."""
    of_states, of_weight = torch.empty_like(slopes), torch.empty_like(weight)
    sizes = *slopes.shape, torch.get_num_threads()
    _call("norm_backward", slopes, found.states, found.scales, weight, added, *sizes, of_states, of_weight)
    return of_states, of_weight


def reverse_gate(gates: Tensor, ups: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the slopes of gates and ups, [N, F], from those of silu(gates) * ups, which these products replace."""
    of_gates, of_ups = torch.empty_like(gates), torch.empty_like(ups)
    _call("gate_backward", gates, ups, slopes, *gates.shape, torch.get_num_threads(), of_gates, of_ups)
    return of_gates, of_ups


def rotate(states: Tensor, rotation: Rotation) -> Tensor:
    """Normalise the heads of states, [N, heads * D], and rotate them (arXiv 2104.09864); in place without a norm."""
    out = states if rotation.weight is None else torch.empty_like(states)
    angles = rotation.cos, rotation.sin
    _call("rotate_forward", states, rotation.weight, rotation.epsilon, *angles, *_find_sizes(states, rotation), out)
    return out


def reverse_rotate(slopes: Tensor, states: Tensor, rotation: Rotation) -> Tensor | None:
    """Replace the slopes of `rotate` by those of its states, and return those of the norm's weight, if it has one."""
    of_weight = None if rotation.weight is None else torch.empty_like(rotation.weight)
    norm, angles = (states, rotation.weight, rotation.epsilon), (rotation.cos, rotation.sin)
    _call("rotate_backward", slopes, *norm, *angles, *_find_sizes(slopes, rotation), of_weight)
    return of_weight


def attend(attention: PackedAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Compute attention over a packed row.

    Args:
        attention: of the layer.
        query: [M, heads * grouped * D], of the rows of its segments.
        key: [N, heads * D].
        value: [N, heads * D].

    Returns:
        the attention, [M, heads * grouped * D], and the log of each query's sum of exponentials, [M, heads * grouped].
    """
    out, sums = torch.empty_like(query), query.new_empty(len(query), attention.heads * attention.grouped)
    find_function("attend_forward")(byref(attention), *(each.data_ptr() for each in (query, key, value, sums, out)))
    return out, sums


def reverse_attend(attention: PackedAttention, inputs: tuple[Tensor, ...], slopes: Tensor) -> tuple[Tensor, ...]:
    """Compute the slopes of query, key and value.

    Args:
        attention: of the layer.
        inputs: query, key, value, the sums and the attention of `attend`.
        slopes: of the attention.
    """
    query, key, value, *_ = inputs
    outputs = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
    addresses = (each.data_ptr() for each in (*inputs, slopes, *outputs))
    find_function("attend_backward")(byref(attention), *addresses)
    return outputs


def _find_sizes(states: Tensor, rotation: Rotation) -> tuple[int, int, int, int]:
    width = rotation.cos.shape[1]
    return len(states), states.shape[1] // width, width, torch.get_num_threads()


def _call(name: str, *values: Tensor | float | None) -> None:
    """Call a function with the addresses of tensors."""
    find_function(name)(*(each.data_ptr() if isinstance(each, Tensor) else each for each in values))
