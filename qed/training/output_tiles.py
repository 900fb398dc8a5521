"""The logits of an output layer, tile by tile: a tile is a block of rows by a slice of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from qed.kernels.functions import has_tile_products
from qed.kernels.weight_gradient import add_weight_gradient, split_slopes
from qed.models.families import LogitTransform
from qed.models.fast_float32 import add_multiplied, is_faster, multiply
from qed.training.support import LabelSupport

# A float32 tile takes 8 MiB on a CPU, whose caches are small, and 128 MiB elsewhere, where it must be large enough to
# outweigh the cost of launching a kernel. Each pass holds at most two.
TILE_ELEMENTS = {"cpu": 1 << 21, "other": 1 << 25}
# More rows would make tiles narrow; fewer would read and write the weight's gradient more often.
TILE_ROWS = 2048
# Except on CPUs, tiles have a multiple of this many columns: products are slow if matrix rows are not aligned.
ALIGNED = 128


class Tile(NamedTuple):
    """A block of rows and a slice of the vocabulary, with the slice's number."""

    rows: slice
    columns: slice
    number: int

    def view_in(self, memory: Tensor) -> Tensor:
        """View the first elements of a buffer in the tile's shape."""
        height, width = self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        return memory[: height * width].view(height, width)

    def view_within(self, memory: Tensor, vocabulary: int) -> Tensor:
        """View the tile's own part of a buffer for all tiles."""
        height = self.rows.stop - self.rows.start
        return self.view_in(memory[self.rows.start * vocabulary + height * self.columns.start :])

    def locate(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the column of each row's label in this tile, [n, 1], and whether the label is in this tile, [n, 1]."""
        column, width = labels[self.rows, None] - self.columns.start, self.columns.stop - self.columns.start
        return column.clamp(0, width - 1), (column >= 0) & (column < width)


class OutputLayer:
    """An output layer with its input and the tiles of its logits."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: float,
        transform: LogitTransform,
        support: LabelSupport | None = None,
    ) -> None:
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.temperature, self.transform, self.support = temperature, transform, support
        self.divisor = temperature / transform.scale
        self.slopes: Tensor | None = None  # a buffer for the slope of the cap at each logit of a tile
        rows = max(1, len(hidden))
        # Blocks of rows have about equal heights, so that none is very small.
        height = math.ceil(rows / math.ceil(rows / TILE_ROWS))
        width = _choose_width(height, hidden.device.type == "cpu")
        self.columns = _split_spans(len(weight), width)
        self.blocks = [
            [Tile(block, columns, number) for number, columns in enumerate(self.columns)]
            for block in _split_spans(len(hidden), height)
        ]
        self.height, self.width = height, min(width, len(weight))
        self.largest = self.height * self.width

    def allocate(self, *shape: int) -> Tensor:
        """Allocate an uninitialised tensor in the precision of the log-probs."""
        return self.hidden.new_empty(shape, dtype=torch.promote_types(self.hidden.dtype, torch.float32))

    def compute_logits(self, tile: Tile, memory: Tensor) -> Tensor:
        """Compute the logits of a tile in the first elements of a buffer, with those outside the support hidden."""
        logits = self._compute_all_logits(tile, memory)
        if self.support is not None:
            self.support.hide(logits, tile.rows, tile.columns.start)
        return logits

    def _compute_all_logits(self, tile: Tile, memory: Tensor) -> Tensor:
        hidden, weight, logits = self.hidden[tile.rows], self.slice_weight(tile), tile.view_in(memory)
        if hidden.dtype == logits.dtype and not is_faster():
            torch.mm(hidden, weight.T, out=logits)
        else:
            logits.copy_(multiply(hidden, weight))
        if self.bias is not None:
            logits += self.bias[tile.columns]
        cap = self.transform.cap
        if cap is None:
            return logits if self.divisor == 1.0 else logits.div_(self.divisor)
        logits.mul_(self.transform.scale / cap).tanh_()
        if self.slopes is not None:
            torch.mul(logits, logits, out=tile.view_in(self.slopes)).neg_().add_(1)
        return logits.mul_(cap / self.temperature)

    def slice_weight(self, tile: Tile) -> Tensor:
        """Return the weight of a tile's vocabulary in the precision of the computation."""
        return self.weight[tile.columns].to(self.hidden.dtype)


class LogitSlopes(NamedTuple):
    """The inputs of the gradient of logits z, [N] each: d = e_y a - p ((log p + H) b + a), where p = softmax(z)."""

    normaliser: Tensor  # log sum_v e^(z_v)
    entropy: Tensor  # H
    of_logps: Tensor  # a, the gradient of the label's log-prob; a and b are divided by the logits' divisor
    of_entropy: Tensor | None  # b, the gradient of the entropy; None for 0

    def make_contiguous(self) -> LogitSlopes:
        """Return the same numbers in contiguous tensors."""
        of_entropy = None if self.of_entropy is None else self.of_entropy.contiguous()
        return LogitSlopes(
            self.normaliser.contiguous(), self.entropy.contiguous(), self.of_logps.contiguous(), of_entropy
        )

    def select(self, rows: slice) -> LogitSlopes:
        """Return the slopes of some rows."""
        of_entropy = None if self.of_entropy is None else self.of_entropy[rows]
        return LogitSlopes(self.normaliser[rows], self.entropy[rows], self.of_logps[rows], of_entropy)


class TileGradient(NamedTuple):
    """The gradient of a tile's logits, in memory that the next tile reuses."""

    tile: Tile
    of_logits: Tensor  # [n, w], in the precision of the hidden states
    transposed: Tensor  # [w, n], for the gradient of the weight
    lost: Tensor | None = None  # [n, w], the gradient's rounding error, in place of an exact transpose


class TileKernels(NamedTuple):
    """Kernels that read each logit once.

    `reduce` takes the layer, its labels, whether to sum squares, and whether to keep the logits; it returns the logit
    of each label [N], the sums of K tiles [4, K, N] as in `_sum_tile`, and the logits of each tile, or none.
    `differentiate` takes these logits, and the accumulator of the weight's gradient or None; it yields the tiles block
    by block, in order.
    """

    reduce: Callable[[OutputLayer, Tensor, bool, bool], tuple[Tensor, Tensor, list[Tensor]]]
    differentiate: Callable[[OutputLayer, Tensor, LogitSlopes, list[Tensor], Tensor | None], Iterator[TileGradient]]
    casts_weight: bool  # whether they need the whole weight cast to the precision of the hidden states


def choose_accumulator(weight: Tensor, into: Tensor | None) -> Tensor:
    """Return the tensor that accumulates the weight's gradient."""
    if into is None:
        return torch.zeros_like(weight)
    if into.grad is None:
        into.grad = torch.zeros_like(into, dtype=into.grad_dtype)  # float32 if the weight is in half precision
    return into.grad


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute total += left @ right, where the right side may be in half precision.

    CUDA accumulates half-precision products in float32. Elsewhere, two half-precision sides give a half-precision
    product; otherwise both are cast to the dtype of the total, unless `keeps_states`.
    """
    half = right.dtype in (torch.bfloat16, torch.float16)
    if half and total.is_cuda and total.dtype == torch.float32:
        torch.addmm(total, left.to(right.dtype), right, out_dtype=total.dtype, out=total)
    elif left.dtype == right.dtype != total.dtype:
        total.add_(multiply(left, right.T))
    elif left.dtype == torch.float32 and keeps_states(total, right):
        add_weight_gradient(total, *split_slopes(left.T), right)
    else:
        add_multiplied(total, left.to(total.dtype), right.to(total.dtype))


def add_tile(total: Tensor, gradient: TileGradient, states: Tensor) -> None:
    """Add the contribution of a tile and its rows' states (see `keeps_states`) to the gradient of a weight."""
    own = total[gradient.tile.columns]
    if gradient.lost is None:
        add_product(own, gradient.transposed, states)
    else:
        add_weight_gradient(own, gradient.of_logits, gradient.lost, states)


def keeps_states(total: Tensor, states: Tensor) -> bool:
    """Return whether `add_product` multiplies float32 slopes with bfloat16 states on a CPU without casting."""
    return (
        total.dtype == torch.float32
        and states.dtype == torch.bfloat16
        and total.device.type == "cpu"
        and total.is_contiguous()
        and has_tile_products()
    )


def _choose_width(height: int, on_cpu: bool) -> int:
    if on_cpu:
        return max(1, TILE_ELEMENTS["cpu"] // height)
    return max(1, TILE_ELEMENTS["other"] // (height * ALIGNED)) * ALIGNED


def _split_spans(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
