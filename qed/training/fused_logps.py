"""Log-probs and entropy of an output layer without all of its logits in memory: they are computed tile by tile.

A tile is a block of rows by a slice of the vocabulary. The forward pass reduces each tile to a few sums per row and
combines these. The backward pass computes the tiles again, or reads stored exponentials if all of them are small.
Related: arXiv 2411.09009, 2410.10989.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qed.models.families import IDENTITY, LogitTransform
from qed.training.support import LabelSupport

# A tile in float32 takes 8 MiB on a CPU, whose caches are small, and 128 MiB elsewhere, where it must be large enough
# for the cost of starting a kernel. Each pass holds at most two.
TILE_ELEMENTS = {"cpu": 1 << 21, "other": 1 << 25}
# More rows would make tiles narrow; fewer would read and write the weight's gradient more often.
TILE_ROWS = 2048
# The exponentials of all tiles are stored for the backward pass if they take at most 128 MiB.
KEPT_ELEMENTS = 1 << 25


def compute_linear_scores(  # noqa: PLR0913 -- an output layer is a weight, a bias and a transform
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    squares: bool = False,
    into_grad: bool = False,
    transform: LogitTransform = IDENTITY,
    support: LabelSupport | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute log-probs of labels, entropies and log sum_v p_v^2 from hidden states and an output layer.

    Args:
        hidden: [N, H].
        weight: [V, H].
        labels: [N] int64.
        temperature: divides the logits.
        bias: [V] or None.
        squares: compute the third result, which has no gradient; it is empty otherwise.
        into_grad: add the weight's gradient to `weight.grad`, see below.
        transform: applied to the logits before the temperature divides them.
        support: the tokens that the softmax is over; None for all.

    Returns:
        three [N] tensors in float32, or float64 where the hidden states are.

    With `into_grad` the backward pass adds the weight's gradient directly to `weight.grad`, so that an existing
    gradient, of an earlier micro-batch or of tied embeddings, needs no second tensor. It is for `loss.backward()` on a
    weight that is a parameter without hooks: `torch.autograd.grad` would not see this gradient.
    """
    graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden, weight))
    options = _Options(
        temperature,
        transform,
        squares,
        # The slope of a cap needs the logit, which is lost where the exponential is rounded to 0.
        keep=graph and transform.cap is None and len(hidden) * len(weight) <= KEPT_ELEMENTS,
        into=weight if into_grad and weight.is_leaf and weight.requires_grad else None,
        support=support,
    )
    logps, entropy, log_squares = _LinearLogps.apply(hidden, weight, bias, labels, options)
    return logps, entropy, log_squares


# `keep` stores the exponentials; `into` is the weight whose `grad` receives the gradient.
class _Options(NamedTuple):
    temperature: float
    transform: LogitTransform
    squares: bool
    keep: bool
    into: Tensor | None
    support: LabelSupport | None


class _Tile(NamedTuple):
    """A block of rows and a slice of the vocabulary, with the number of the slice."""

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


class _Layer:
    """An output layer with its input and the tiles of its logits."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, options: _Options) -> None:
        self.hidden, self.weight, self.bias, self.options = hidden, weight, bias, options
        self.divisor = options.temperature / options.transform.scale
        self.slopes: Tensor | None = None  # a buffer for the slope of the cap at each logit of a tile
        rows = max(1, len(hidden))
        # Blocks of rows have equal heights, so that none is very small.
        height = math.ceil(rows / math.ceil(rows / TILE_ROWS))
        width = max(1, TILE_ELEMENTS["cpu" if hidden.device.type == "cpu" else "other"] // height)
        self.columns = _split_spans(len(weight), width)
        self.blocks = [
            [_Tile(block, columns, number) for number, columns in enumerate(self.columns)]
            for block in _split_spans(len(hidden), height)
        ]
        self.largest = height * min(width, len(weight))

    def allocate(self, *shape: int) -> Tensor:
        """Allocate an uninitialised tensor in the precision of the log-probs."""
        return self.hidden.new_empty(shape, dtype=torch.promote_types(self.hidden.dtype, torch.float32))

    def compute_logits(self, tile: _Tile, memory: Tensor) -> Tensor:
        """Compute the logits of a tile in the first elements of a buffer, with those outside the support hidden."""
        logits = self._compute_all_logits(tile, memory)
        if self.options.support is not None:
            self.options.support.hide(logits, tile.rows, tile.columns.start)
        return logits

    def _compute_all_logits(self, tile: _Tile, memory: Tensor) -> Tensor:
        hidden, weight, logits = self.hidden[tile.rows], self.slice_weight(tile), tile.view_in(memory)
        if hidden.dtype == logits.dtype:
            torch.mm(hidden, weight.T, out=logits)
        else:
            logits.copy_(hidden @ weight.T)
        if self.bias is not None:
            logits += self.bias[tile.columns]
        cap = self.options.transform.cap
        if cap is None:
            return logits if self.divisor == 1.0 else logits.div_(self.divisor)
        logits.mul_(self.options.transform.scale / cap).tanh_()
        if self.slopes is not None:
            torch.mul(logits, logits, out=tile.view_in(self.slopes)).neg_().add_(1)
        return logits.mul_(cap / self.options.temperature)

    def slice_weight(self, tile: _Tile) -> Tensor:
        """Return the weight of a tile's vocabulary in the precision of the computation."""
        return self.weight[tile.columns].to(self.hidden.dtype)


class _Softmax(NamedTuple):
    """The results of the forward pass that the backward pass reads.

    `normaliser` is log sum_v e^(z_v), and `entropy` that of each row. `kept` has the exponentials of all tiles, or is
    empty; the log of an exponential, plus `shifts` of its tile and row, is the log-prob.
    """

    normaliser: Tensor
    entropy: Tensor
    shifts: Tensor
    kept: Tensor

    def compute_log_probs(self, layer: _Layer, tile: _Tile, memory: Tensor) -> Tensor:
        """Compute the log-probs of a tile."""
        if not len(self.kept):
            return layer.compute_logits(tile, memory).sub_(self.normaliser[tile.rows, None])
        # An exponential rounded to 0 has no finite log; clamped, its product with the probability is still 0.
        exponentials = tile.view_within(self.kept, len(layer.weight))
        clamped = torch.clamp(exponentials, min=torch.finfo(memory.dtype).tiny, out=tile.view_in(memory))
        return clamped.log_().add_(self.shifts[tile.number, tile.rows, None])

    def compute_probs(self, layer: _Layer, tile: _Tile, memory: Tensor, factors: Tensor) -> Tensor:
        """Compute the probabilities of a tile, times the factor of each row."""
        if not len(self.kept):
            return self.compute_log_probs(layer, tile, memory).exp_().mul_(factors)
        exponentials = tile.view_within(self.kept, len(layer.weight))
        factors = self.shifts[tile.number, tile.rows, None].exp() * factors
        return torch.mul(exponentials, factors, out=tile.view_in(memory))


class _LinearLogps(torch.autograd.Function):
    """Computes log softmax(f(h W^T + b) / temperature)[label], its entropy and, optionally, log sum_v p_v^2.

    f is the transform, and the softmax is over the support. With z the softmax's argument, p the softmax, H the
    entropy: d logp / dz_j = 1[j = y] - p_j and dH / dz_j = -p_j (log p_j + H), both 0 outside the support; the slope of
    f is scale * (1 - (f / cap)^2). The sum of squares has no gradient, and is empty without `options.squares`.
    """

    @staticmethod
    def forward(
        context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor, Tensor]:
        layer = _Layer(hidden, weight, bias, options)
        chosen = layer.allocate(len(hidden)).zero_()
        normaliser, entropy, log_squares = layer.allocate(3, len(hidden)).unbind()
        shifts = layer.allocate(len(layer.columns), len(hidden))
        kept = layer.allocate(hidden.shape[0] * weight.shape[0] if options.keep else 0)
        memory = layer.allocate(layer.largest)
        spare = kept if options.keep else layer.allocate(layer.largest)
        for block in layer.blocks:
            rows, sums = block[0].rows, []
            for tile in block:
                logits = layer.compute_logits(tile, memory)
                column, inside = tile.locate(labels)
                chosen[rows] += torch.where(inside, logits.gather(-1, column), 0).squeeze(-1)
                exponentials = tile.view_within(kept, len(weight)) if options.keep else tile.view_in(spare)
                sums.append(_sum_tile(logits, exponentials, options.squares))
            normaliser[rows], entropy[rows], log_squares[rows], shifts[:, rows] = _join_tiles(torch.stack(sums, 1))
        context.save_for_backward(hidden, weight, bias, labels, normaliser, entropy, shifts, kept)
        context.options = options
        squares = log_squares.clone() if options.squares else layer.allocate(0)
        context.mark_non_differentiable(squares)
        return chosen - normaliser, entropy.clone(), squares

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, *saved = context.saved_tensors
        options: _Options = context.options
        layer, softmax = _Layer(hidden, weight, bias, options), _Softmax(*saved)
        of_logps, of_entropy = (gradient[:, None] / layer.divisor for gradient in gradients[:2])
        d_hidden = layer.allocate(*hidden.shape).zero_()
        d_weight = _choose_accumulator(weight, options.into) if context.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and context.needs_input_grad[2] else None
        memory = layer.allocate(layer.largest)
        spare = layer.allocate(layer.largest) if bool(of_entropy.any()) else None
        layer.slopes = layer.allocate(layer.largest) if options.transform.cap is not None else None
        for tile in chain.from_iterable(layer.blocks):
            rows, columns, _ = tile
            if spare is None:
                d_logits = softmax.compute_probs(layer, tile, memory, -of_logps[rows])
            else:
                d_logits = softmax.compute_log_probs(layer, tile, memory)
                probs = torch.exp(d_logits, out=tile.view_in(spare))
                d_logits.add_(softmax.entropy[rows, None]).mul_(of_entropy[rows]).add_(of_logps[rows])
                d_logits.mul_(probs).neg_()
            column, inside = tile.locate(labels)
            d_logits.scatter_add_(-1, column, torch.where(inside, of_logps[rows], 0))
            if layer.slopes is not None:
                d_logits.mul_(tile.view_in(layer.slopes))
            _add_product(d_hidden[rows], d_logits.to(hidden.dtype), layer.slice_weight(tile))
            if d_weight is not None:
                _add_product(d_weight[columns], d_logits.T, hidden[rows])
            if d_bias is not None:
                d_bias[columns] += d_logits.sum(0)
        return d_hidden.to(hidden.dtype), None if options.into is not None else d_weight, d_bias, None, None


def _sum_tile(logits: Tensor, exponentials: Tensor, squares: bool) -> Tensor:
    """Reduce a tile's logits z to [4, n]: m = max z, sum e^(z - m), sum e^(z - m) (z - m), sum e^2(z - m).

    Writes e^(z - m) to `exponentials`, and overwrites the logits.
    """
    top = logits.amax(-1)
    torch.exp(logits.sub_(top[:, None]), out=exponentials)
    mass, moment = exponentials.sum(-1), logits.mul_(exponentials).sum(-1)
    square = torch.mul(exponentials, exponentials, out=logits).sum(-1) if squares else torch.ones_like(mass)
    return torch.stack((top, mass, moment, square))


def _join_tiles(sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Combine the sums of K tiles, [4, K, n], into normaliser, entropy, log sum_v p_v^2 and shifts of their rows."""
    tops, masses, moments, squares = sums
    below = tops - tops.amax(0)
    scales = below.exp()
    mass = (scales * masses).sum(0)
    normaliser = tops.amax(0) + mass.log()
    entropy = mass.log() - (scales * (moments + below * masses)).sum(0) / mass
    log_squares = (scales.square() * squares).sum(0).log() - 2 * mass.log()
    return normaliser, entropy, log_squares, tops - normaliser


def _choose_accumulator(weight: Tensor, into: Tensor | None) -> Tensor:
    """Return the tensor that accumulates the weight's gradient."""
    if into is None:
        return torch.zeros_like(weight)
    if into.grad is None:
        into.grad = torch.zeros_like(into, dtype=into.grad_dtype)  # float32 where the weight is in half precision
    return into.grad


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute total += left @ right, where the right side may be in half precision.

    CUDA accumulates products of half precision in float32. Elsewhere two sides in half precision give a product in
    half precision, else both are cast to that of the total.
    """
    half = right.dtype in (torch.bfloat16, torch.float16)
    if half and total.is_cuda and total.dtype == torch.float32:
        torch.addmm(total, left.to(right.dtype), right, out_dtype=total.dtype, out=total)
    elif left.dtype == right.dtype != total.dtype:
        total.add_(left @ right)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))


def _split_spans(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
