"""The operations of a decoding step on the CPU, in float32, or in bfloat16 with float32 states and norms.

They do the same as torch's functions of these names, in fewer and larger steps. The result for a row depends neither on
the other rows of the batch nor on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from qed.kernels.build import load_library
from qed.kernels.functions import call_function, find_function
from qed.kernels.structures import Attention, Product, Rows

TILE_COLUMNS, PANEL = 16, 32  # columns of an AMX tile; outputs of a panel, or inputs that are read together


class Linear:
    """A linear layer in float32, from [R, inputs] to [R, outputs], whose weight is copied in the order of reading.

    Args:
        weight: [outputs, inputs].
        bias: [outputs], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        library = load_library().library
        assert library is not None
        outputs, inputs = weight.shape
        panel = library.find_panel()
        whole = _round_up(outputs, panel)
        self.panels, self.bias = torch.empty(whole * inputs), torch.zeros(whole)
        weight = weight.detach().contiguous()  # a copy must live until it is packed
        find_function("pack")(weight.data_ptr(), outputs, inputs, self.panels.data_ptr())
        if bias is not None:
            self.bias[:outputs] = bias.detach()
        self.product = Product(self.panels.data_ptr(), self.bias.data_ptr(), outputs, inputs)
        self.threads, self._multiply = torch.get_num_threads(), find_function("multiply", torch.float32)

    def __call__(self, states: Tensor) -> Tensor:
        """Multiply states whose rows are contiguous."""
        rows = len(states)
        out = states.new_empty(rows, self.product.outputs)
        self._multiply(states.data_ptr(), rows, states.stride(0), byref(self.product), self.threads, out.data_ptr())
        return out


class TileLinear:
    """A linear layer in bfloat16, from [R, inputs] to [R, outputs], by AMX tiles (see `has_tile_products`).

    The weights are copied in the order of reading.

    Args:
        weights: [outputs, inputs] each, of layers with the same input whose outputs are joined, float32 or bfloat16.
        bias: of all outputs, or None.
    """

    def __init__(self, weights: Sequence[Tensor], bias: Tensor | None) -> None:
        if any(len(weight) % TILE_COLUMNS for weight in weights[:-1]):
            weights = [torch.cat([*weights])]  # separate weights must begin at a tile
        outputs, inputs = sum(map(len, weights)), weights[0].shape[1]
        self.panels = torch.zeros(_round_up(outputs, PANEL), _round_up(inputs, PANEL), dtype=torch.bfloat16)
        self.bias, first = torch.zeros(len(self.panels)), 0
        for weight in weights:
            given = weight.detach().contiguous()
            call_function("pack_tiles", weight.dtype, given, *given.shape, first, torch.get_num_threads(), self.panels)
            first += len(weight)
        if bias is not None:
            self.bias[:outputs] = bias.detach()
        self.product = Product(self.panels.data_ptr(), self.bias.data_ptr(), outputs, inputs)
        self.threads, self._multiply = torch.get_num_threads(), find_function("multiply", torch.bfloat16)

    def __call__(self, states: Tensor) -> Tensor:
        """Multiply states whose rows are contiguous; they are rounded to bfloat16."""
        assert states.dim() == 2
        assert states.stride(-1) == 1
        states, rows = states.to(torch.bfloat16), len(states)
        out = states.new_empty(rows, self.product.outputs)
        self._multiply(states.data_ptr(), rows, states.stride(0), byref(self.product), self.threads, out.data_ptr())
        return out


class Norm:
    """RMSNorm (arXiv 1910.07467) of the states, [R, H] float32, after a layer's residual branch is added.

    Args:
        weight: [H] float32.
        epsilon: added to the mean of the squares.
        dtype: the dtype of the change and of the result, float32 or bfloat16.
    """

    def __init__(self, weight: Tensor, epsilon: float, dtype: torch.dtype) -> None:
        self.weight, self.epsilon, self.dtype = weight.detach().contiguous(), epsilon, dtype
        self.threads, self._norm = torch.get_num_threads(), find_function("norm", dtype)

    def __call__(self, states: Tensor, change: Tensor | None) -> Tensor:
        """Add the change, [R, H] or None, to the states in place, and return their norm."""
        rows, width = states.shape
        out = states.new_empty(rows, width, dtype=self.dtype)
        added = None if change is None else change.data_ptr()
        sizes = rows, width, self.threads
        self._norm(states.data_ptr(), added, self.weight.data_ptr(), self.epsilon, *sizes, out.data_ptr())
        return out


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step


def gate(gates: Tensor, ups: Tensor) -> Tensor:
    """Return silu(gates) * ups, [R, F], rounded once; both have the same strides and contiguous rows."""
    assert gates.stride() == ups.stride()
    rows, width = gates.shape
    out = gates.new_empty(rows, width)
    sizes = gates.stride(0), rows, width, torch.get_num_threads()
    find_function("gate", gates.dtype)(gates.data_ptr(), ups.data_ptr(), *sizes, out.data_ptr())
    return out


def draw(logits: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw a token of each row, see `qed.sampling.draw.draw_tokens`.

    Args:
        logits: [B, V] float32 or bfloat16, with contiguous rows.
        uniform: [B] float64, or None.
    """
    rows, size = logits.shape
    tokens, logps = logits.new_empty(rows, dtype=torch.int64), logits.new_empty(rows, dtype=torch.float32)
    numbers = None if uniform is None else uniform.contiguous()
    address = None if numbers is None else numbers.data_ptr()
    sizes = rows, logits.stride(0), size
    out = tokens.data_ptr(), logps.data_ptr()
    find_function("draw", logits.dtype)(logits.data_ptr(), *sizes, address, torch.get_num_threads(), *out)
    return tokens, logps


def shape(scores: Tensor, temperature: float, most: int, share: float, least: float) -> Tensor:
    """Divide logits by the temperature, and set those of excluded tokens to minus infinity.

    The most likely token stays. A row with an infinite logit, or without a finite one, is not truncated, and NaN stays.

    Args:
        scores: [B, V] float32 or bfloat16, with contiguous rows.
        temperature: above 0.
        most: top-k: how many of the most likely tokens stay, with all ties of the last one; 0 for all.
        share: top-p: the fewest of these tokens stay that reach this share of their probability, to 1e-7.
        least: min-p: the share of the largest probability that a token needs; 0 for none.

    Returns:
        [B, V] float32.
    """
    rows, size = scores.shape
    out = scores.new_empty(rows, size, dtype=torch.float32)
    gap = -math.log(least) if least else math.inf
    sizes = rows, scores.stride(0), size
    cut = min(most, size), share, gap
    place = torch.get_num_threads(), out.data_ptr()
    find_function("shape", scores.dtype)(scores.data_ptr(), *sizes, temperature, *cut, *place)
    return out


def append(chosen: Tensor, logps: Tensor, ended: Tensor, longest: Tensor, rows: tuple[Tensor, ...]) -> None:
    """Append tokens to the rows, see `qed.sampling.native.sequences.append_tokens`.

    Args:
        chosen: [R] int64, the tokens.
        logps: [R] float32, their log-probs.
        ended: [R] bool, which of them are end tokens.
        longest: [R] int64, the most tokens that a row may have.
        rows: tokens [R, W], log-probs [R, W] float32, lengths [R] and whether a row has finished [R]; they change.
    """
    tensors = (chosen, logps, ended, longest, *rows)
    assert all(each.is_contiguous() for each in tensors)
    find_function("append")(*rows[0].shape, *(each.data_ptr() for each in tensors))


def attend(rows: Rows, attention: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Rotate queries and keys, write keys and values into the column of the cache, and compute attention.

    Args:
        rows: the rows of the step.
        attention: the attention of the layer; the strides of the new states are set here.
        query: [R, heads * grouped * width], in the precision of the cache, like key and value.
        key: [R, heads * width].
        value: [R, heads * width].

    Returns:
        [R, heads * grouped * width]; 0 in rows that have finished.
    """
    attention.query_stride, attention.key_stride, attention.value_stride = (
        states.stride(0) for states in (query, key, value)
    )
    out = query.new_empty(query.shape)
    new = query.data_ptr(), key.data_ptr(), value.data_ptr()
    find_function("attend", query.dtype)(byref(rows), byref(attention), *new, out.data_ptr())
    return out
