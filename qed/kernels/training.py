"""The operations of an update on the CPU, forward and backward.

All tensors are contiguous. States, weights and angles are float32. The inputs and outputs of matrix products are
float32 or bfloat16, and so are their gradients unless stated otherwise. "Slopes" are the gradients of the loss with
respect to a tensor. The results do not depend on the number of threads.
"""

from __future__ import annotations

from ctypes import byref
from typing import NamedTuple

import torch
from torch import Tensor

from qed.kernels.functions import call_function, find_function
from qed.kernels.structures import PackedAttention


class Normed(NamedTuple):
    """Results of `norm`."""

    states: Tensor  # [N, H], with the changes added
    scales: Tensor  # [N] float32
    normed: Tensor  # [N, H], the input of matrix products


class Rotation(NamedTuple):
    """How heads are rotated."""

    cos: Tensor  # [N, D], of the positions of the N tokens
    sin: Tensor  # [N, D]
    weight: Tensor | None  # [D], of the norm of each head before its rotation; None for no norm
    epsilon: float  # of that norm


def norm(states: Tensor, changes: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Normed:
    """Compute RMSNorm (arXiv 1910.07467) of states, [N, H], plus changes, [N, H] or None; the norm has the dtype."""
    sums = states if changes is None else torch.empty_like(states)
    scales, normed = states.new_empty(len(states)), torch.empty_like(states, dtype=dtype)
    sizes = *states.shape, torch.get_num_threads()
    call_function("norm_forward", dtype, states, changes, weight, epsilon, *sizes, sums, scales, normed)
    return Normed(sums, scales, normed)


def reverse_norm(slopes: Tensor, found: Normed, weight: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the states of `norm`, plus `added`, and of the weight, [N, H] and [H] float32."""
    of_states, of_weight = torch.empty_like(found.states), torch.empty_like(weight)
    sizes = *slopes.shape, torch.get_num_threads()
    call_function(
        "norm_backward", slopes.dtype, slopes, found.states, found.scales, weight, added, *sizes, of_states, of_weight
    )
    return of_states, of_weight


def reverse_gate(gates: Tensor, ups: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients of gates and ups, [N, F], from `slopes`, that of silu(gates) * ups, which replaces it."""
    of_gates, of_ups = torch.empty_like(gates), torch.empty_like(ups)
    call_function(
        "gate_backward", gates.dtype, gates, ups, slopes, *gates.shape, torch.get_num_threads(), of_gates, of_ups
    )
    return of_gates, of_ups


def rotate(states: Tensor, rotation: Rotation) -> Tensor:
    """Normalise the heads of states, [N, heads * D], and rotate them (arXiv 2104.09864); in place without a norm."""
    out = states if rotation.weight is None else torch.empty_like(states)
    norm, angles = (rotation.weight, rotation.epsilon), (rotation.cos, rotation.sin)
    call_function("rotate_forward", states.dtype, states, *norm, *angles, *_find_sizes(states, rotation), out)
    return out


def reverse_rotate(slopes: Tensor, states: Tensor, rotation: Rotation) -> Tensor | None:
    """Replace the gradients of the result of `rotate` by those of its states; return the weight's, all in float32."""
    of_weight = None if rotation.weight is None else torch.empty_like(rotation.weight)
    assert slopes.dtype == torch.float32
    norm, angles = (states, rotation.weight, rotation.epsilon), (rotation.cos, rotation.sin)
    call_function("rotate_backward", states.dtype, slopes, *norm, *angles, *_find_sizes(slopes, rotation), of_weight)
    return of_weight


def attend(attention: PackedAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Compute attention over a packed row.

    Args:
        attention: the attention of the layer.
        query: [M, heads * grouped * D], of the rows of its segments.
        key: [N, heads * D].
        value: [N, heads * D].

    Returns:
        the attention, [M, heads * grouped * D], and the logs of the sums of exponentials, [M, heads * grouped] float32.
    """
    sums = query.new_empty(len(query), attention.heads * attention.grouped, dtype=torch.float32)
    out = torch.empty_like(query)
    addresses = (each.data_ptr() for each in (query, key, value, sums, out))
    find_function("attend_forward", query.dtype)(byref(attention), *addresses)
    return out, sums


def reverse_attend(attention: PackedAttention, inputs: tuple[Tensor, ...], slopes: Tensor) -> tuple[Tensor, ...]:
    """Compute the gradients of query, key and value, float32.

    Args:
        attention: the attention of the layer.
        inputs: query, key, value, and the sums and the attention that `attend` returned.
        slopes: the gradient of the attention.
    """
    query, key, value, *_ = inputs
    outputs = tuple(torch.zeros_like(states, dtype=torch.float32) for states in (query, key, value))
    addresses = (each.data_ptr() for each in (*inputs, slopes, *outputs))
    find_function("attend_backward", query.dtype)(byref(attention), *addresses)
    return outputs


def _find_sizes(states: Tensor, rotation: Rotation) -> tuple[int, int, int, int]:
    width = rotation.cos.shape[1]
    return len(states), states.shape[1] // width, width, torch.get_num_threads()
