"""Reduce and differentiate a tile of an output layer's logits in half precision, reading each logit once.

torch's own operations would copy a tile to float32 and pass over it about seven times; here it is read as the matrix
product wrote it, and float32 is used only in registers. The sums of a row use a running maximum: when it grows from m
to m', a sum of e^(z - m) is multiplied by e^(m - m'), and one of e^(z - m) (z - m) becomes
e^(m - m') (sum + (m - m') sum e^(z - m)). Related: arXiv 1805.02867.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # logits of a row at a time
LOWEST = tl.constexpr(-1e30)  # below any logit, and finite, so that 0 times a difference from it is 0
UNLIKELY = tl.constexpr(-1e4)  # a log-prob whose exponential is 0 in float32


@triton.jit(do_not_specialize=["labels", "sums", "chosen", "first", "step"])
def _reduce(
    logits, labels, sums, chosen, width, stride, first, step, factor, BLOCK: tl.constexpr, SQUARES: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * stride
    place = tl.arange(0, BLOCK)
    top = tl.full([], LOWEST, tl.float32)
    # One sum for each position of a block, so a block needs only one reduction over threads, that of its maximum.
    mass = tl.zeros([BLOCK], tl.float32)
    moment = tl.zeros([BLOCK], tl.float32)
    square = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        inside = start + place < width
        loaded = tl.load(here + start + place, mask=inside, other=0.0)
        scaled = tl.where(inside, loaded.to(tl.float32) * factor, LOWEST)
        higher = tl.maximum(top, tl.max(scaled, 0))
        below = top - higher
        scale = tl.exp(below)
        shifted = scaled - higher
        exponential = tl.exp(shifted)
        moment = scale * (moment + below * mass) + exponential * shifted
        mass = scale * mass + exponential
        if SQUARES:
            square = scale * scale * square + exponential * exponential
        top = higher
    # No logit is above LOWEST: the row is -inf, whose softmax is undefined.
    nothing = top <= LOWEST
    undefined = tl.where(nothing, float("nan"), 0.0)
    step = tl.cast(step, tl.int64)
    tl.store(sums + row, tl.where(nothing, float("-inf"), top))
    tl.store(sums + step + row, tl.sum(mass, 0) + undefined)
    tl.store(sums + 2 * step + row, tl.sum(moment, 0) + undefined)
    tl.store(sums + 3 * step + row, tl.sum(square, 0) + undefined if SQUARES else 1.0)
    column = tl.load(labels + row) - first
    there = (column >= 0) & (column < width)
    logit = tl.load(here + column, mask=there, other=0.0).to(tl.float32) * factor
    tl.store(chosen + row, logit, mask=there)


@triton.jit(do_not_specialize=["labels", "normaliser", "entropy", "of_logps", "of_entropy", "first"])
def _differentiate(
    logits, labels, normaliser, entropy, of_logps, of_entropy, width, stride, first, factor, BLOCK: tl.constexpr,
    ENTROPY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = logits + row * stride + column
    inside = column < width
    log_prob = tl.load(here, mask=inside, other=0.0).to(tl.float32) * factor - tl.load(normaliser + row)
    of_label = tl.load(of_logps + row)
    slope = of_label
    if ENTROPY:
        # The log of a probability of 0 may be -inf, and 0 times that is NaN. The comparison is false for NaN, so it
        # stays.
        log_prob = tl.where(log_prob < UNLIKELY, UNLIKELY, log_prob)
        slope = (log_prob + tl.load(entropy + row)) * tl.load(of_entropy + row) + of_label
    one = tl.where(column == tl.load(labels + row) - first, of_label, 0.0)
    tl.store(here, (one - tl.exp(log_prob) * slope).to(logits.dtype.element_ty), mask=inside)


def reduce_tile(
    logits: Tensor, labels: Tensor, first: int, divisor: float, sums: Tensor, chosen: Tensor, squares: bool
) -> None:
    """Reduce the divided logits z of a tile to sums of each row, and write the z of its label.

    Args:
        logits: [n, w] in half precision, with contiguous rows.
        labels: [n] int64, in the whole vocabulary; contiguous.
        first: the token of the tile's first column.
        divisor: divides the logits.
        sums: [4, n] float32 with contiguous rows, for m = max z, sum e^(z - m), sum e^(z - m) (z - m) and
            sum e^2(z - m).
        chosen: [n] float32, contiguous; only written where the label is in this tile.
        squares: whether to compute the last of the sums, which is 1 otherwise.
    """
    rows, width = logits.shape
    with torch.cuda.device_of(logits):
        _reduce[(rows,)](
            logits, labels, sums, chosen, width, logits.stride(0), first, sums.stride(0), 1 / divisor, BLOCK=BLOCK,
            SQUARES=squares, num_warps=4,
        )  # fmt: skip


def differentiate_tile(
    logits: Tensor,
    labels: Tensor,
    first: int,
    divisor: float,
    normaliser: Tensor,
    entropy: Tensor,
    of_logps: Tensor,
    of_entropy: Tensor | None,
) -> None:
    """Overwrite a tile's logits with their gradient.

    With z the divided logits, p = e^(z - normaliser), y the label and g the gradients of a row it is
    1[j = y] g_logps - p_j (g_logps + g_entropy (log p_j + entropy)).

    Args:
        logits: [n, w] in half precision, with contiguous rows.
        labels: [n] int64, in the whole vocabulary; contiguous, like all tensors that follow.
        first: the token of the tile's first column.
        divisor: divides the logits.
        normaliser: [n] float32, log sum_v e^(z_v).
        entropy: [n] float32.
        of_logps: [n] float32, the gradient of the log-probs over the divisor.
        of_entropy: [n] float32, the gradient of the entropy over the divisor; None if it is 0.
    """
    rows, width = logits.shape
    with torch.cuda.device_of(logits):
        _differentiate[(rows, triton.cdiv(width, BLOCK))](
            logits, labels, normaliser, entropy, of_logps, of_logps if of_entropy is None else of_entropy, width,
            logits.stride(0), first, 1 / divisor, BLOCK=BLOCK, ENTROPY=of_entropy is not None, num_warps=4,
        )  # fmt: skip
