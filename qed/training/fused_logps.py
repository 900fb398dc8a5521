"""Log-probs and entropy of an output layer without its logits: they are made a tile at a time and written over.

A tile is some rows by some of the vocabulary. The forward pass sums each up in a few numbers a row and joins those; the
backward pass makes the tiles again, or takes their exponentials from where they were kept, if all of them are few.
Related: arXiv 2411.09009, 2410.10989.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qed.models.families import IDENTITY, LogitTransform

# A tile in float32 takes 8 MiB on a processor, whose caches are small, and 128 MiB elsewhere, where it must be worth
# the start of a kernel. Each pass holds two at most.
TILE_ELEMENTS = {"cpu": 1 << 21, "other": 1 << 25}
# With more rows a tile would be narrow; with fewer the weight's gradient would be read and written more often.
TILE_ROWS = 2048
# The backward pass need not multiply again where the exponentials of all tiles take 128 MiB at most.
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the log-probs of labels, entropies and log sum_v p_v^2 from hidden states and an output layer.

    Args:
        hidden: [N, H].
        weight: [V, H].
        labels: [N] int64.
        temperature: divides the logits.
        bias: [V] or None.
        squares: compute the third result, which has no gradient; it is empty otherwise.
        into_grad: add the weight's gradient to `weight.grad`, see below.
        transform: applied to the logits before the temperature divides them.

    Returns:
        three [N] tensors in float32, or float64 where the hidden states are.

    With `into_grad` the backward pass adds the weight's gradient to `weight.grad` as it makes it, so that a gradient
    which is there already, of an earlier micro-batch or of tied embeddings, takes no second one beside it. It is for
    `loss.backward()` on a weight that is a parameter without hooks: `torch.autograd.grad` would not see this gradient.
    """
    graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden, weight))
    options = _Options(
        temperature,
        transform,
        squares,
        # The slope of a cap follows from the logit, which an exponential that is rounded to 0 does not tell.
        keep=graph and transform.cap is None and len(hidden) * len(weight) <= KEPT_ELEMENTS,
        into=weight if into_grad and weight.is_leaf and weight.requires_grad else None,
    )
    logps, entropy, log_squares = _LinearLogps.apply(hidden, weight, bias, labels, options)
    return logps, entropy, log_squares


class _Options(NamedTuple):
    temperature: float
    transform: LogitTransform
    squares: bool
    keep: bool
    into: Tensor | None


class _Tile(NamedTuple):
    """Some rows and some of the vocabulary, with the number of the latter among its parts."""

    rows: slice
    columns: slice
    number: int

    def beginning(self, memory: Tensor) -> Tensor:
        """The beginning of some memory in the tile's shape."""
        height, width = self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        return memory[: height * width].view(height, width)

    def within(self, memory: Tensor, vocabulary: int) -> Tensor:
        """The tile's own part of memory that has room for all of them."""
        height = self.rows.stop - self.rows.start
        return self.beginning(memory[self.rows.start * vocabulary + height * self.columns.start :])

    def find(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The column of each row's label, [n, 1], and whether it lies in this tile at all, [n, 1]."""
        column, width = labels[self.rows, None] - self.columns.start, self.columns.stop - self.columns.start
        return column.clamp(0, width - 1), (column >= 0) & (column < width)


class _Layer:
    """An output layer, what it is applied to, and how the logits are cut into tiles."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, options: _Options) -> None:
        self.hidden, self.weight, self.bias, self.options = hidden, weight, bias, options
        self.divisor = options.temperature / options.transform.scale
        self.slopes: Tensor | None = None  # memory for the slope of the cap at each logit of a tile, where it is wanted
        rows = max(1, len(hidden))
        # Blocks of rows are equally high, so that none is a sliver.
        height = math.ceil(rows / math.ceil(rows / TILE_ROWS))
        width = max(1, TILE_ELEMENTS["cpu" if hidden.device.type == "cpu" else "other"] // height)
        self.columns = _split_spans(len(weight), width)
        self.blocks = [
            [_Tile(block, columns, number) for number, columns in enumerate(self.columns)]
            for block in _split_spans(len(hidden), height)
        ]
        self.largest = height * min(width, len(weight))

    def room(self, *shape: int) -> Tensor:
        """A tensor in the precision of the log-probs, with anything in it."""
        return self.hidden.new_empty(shape, dtype=torch.promote_types(self.hidden.dtype, torch.float32))

    def logits(self, tile: _Tile, memory: Tensor) -> Tensor:
        """The logits of a tile, written to the beginning of some memory."""
        hidden, weight, logits = self.hidden[tile.rows], self.narrow(tile), tile.beginning(memory)
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
            torch.mul(logits, logits, out=tile.beginning(self.slopes)).neg_().add_(1)
        return logits.mul_(cap / self.options.temperature)

    def narrow(self, tile: _Tile) -> Tensor:
        """The weight of a tile's vocabulary in the precision of the computation."""
        return self.weight[tile.columns].to(self.hidden.dtype)


class _Softmax(NamedTuple):
    """What is known of the softmax from the forward pass.

    `normaliser` is log sum_v e^(z_v), and `entropy` that of each row. `kept` has the exponentials of all tiles, or is
    empty; the log of one plus `shifts`, of its tile and row, is the log-prob.
    """

    normaliser: Tensor
    entropy: Tensor
    shifts: Tensor
    kept: Tensor

    def log_probs(self, layer: _Layer, tile: _Tile, memory: Tensor) -> Tensor:
        """The log-probs of a tile."""
        if not len(self.kept):
            return layer.logits(tile, memory).sub_(self.normaliser[tile.rows, None])
        # What is rounded to 0 has no finite logarithm; it stays 0 in a product with its probability.
        exponentials = tile.within(self.kept, len(layer.weight))
        found = torch.clamp(exponentials, min=torch.finfo(memory.dtype).tiny, out=tile.beginning(memory))
        return found.log_().add_(self.shifts[tile.number, tile.rows, None])

    def probs(self, layer: _Layer, tile: _Tile, memory: Tensor, factors: Tensor) -> Tensor:
        """The probabilities of a tile, each times the factor of its row."""
        if not len(self.kept):
            return self.log_probs(layer, tile, memory).exp_().mul_(factors)
        exponentials = tile.within(self.kept, len(layer.weight))
        factors = self.shifts[tile.number, tile.rows, None].exp() * factors
        return torch.mul(exponentials, factors, out=tile.beginning(memory))


class _LinearLogps(torch.autograd.Function):
    """log softmax(f(h W^T + b) / temperature)[label], its entropy and, where asked for, log sum_v p_v^2.

    f is the transform. With z the softmax's argument, p the softmax, H the entropy: d logp / dz_j = 1[j = y] - p_j and
    dH / dz_j = -p_j (log p_j + H); the slope of f is scale * (1 - (f / cap)^2). The sum of squares has no gradient, and
    is empty where it was not asked for.
    """

    @staticmethod
    def forward(
        context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor, Tensor]:
        layer = _Layer(hidden, weight, bias, options)
        chosen = layer.room(len(hidden)).zero_()
        normaliser, entropy, log_squares = layer.room(3, len(hidden)).unbind()
        shifts = layer.room(len(layer.columns), len(hidden))
        kept = layer.room(hidden.shape[0] * weight.shape[0] if options.keep else 0)
        memory = layer.room(layer.largest)
        spare = kept if options.keep else layer.room(layer.largest)
        for block in layer.blocks:
            rows, sums = block[0].rows, []
            for tile in block:
                logits = layer.logits(tile, memory)
                column, there = tile.find(labels)
                chosen[rows] += torch.where(there, logits.gather(-1, column), 0).squeeze(-1)
                exponentials = tile.within(kept, len(weight)) if options.keep else tile.beginning(spare)
                sums.append(_sum_tile(logits, exponentials, options.squares))
            normaliser[rows], entropy[rows], log_squares[rows], shifts[:, rows] = _join_tiles(torch.stack(sums, 1))
        context.save_for_backward(hidden, weight, bias, labels, normaliser, entropy, shifts, kept)
        context.options = options
        found = log_squares.clone() if options.squares else layer.room(0)
        context.mark_non_differentiable(found)
        return chosen - normaliser, entropy.clone(), found

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, *saved = context.saved_tensors
        options: _Options = context.options
        layer, softmax = _Layer(hidden, weight, bias, options), _Softmax(*saved)
        of_logps, of_entropy = (gradient[:, None] / layer.divisor for gradient in gradients[:2])
        d_hidden = layer.room(*hidden.shape).zero_()
        d_weight = _choose_accumulator(weight, options.into) if context.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and context.needs_input_grad[2] else None
        memory = layer.room(layer.largest)
        spare = layer.room(layer.largest) if bool(of_entropy.any()) else None
        layer.slopes = layer.room(layer.largest) if options.transform.cap is not None else None
        for tile in chain.from_iterable(layer.blocks):
            rows, columns, _ = tile
            if spare is None:
                d_logits = softmax.probs(layer, tile, memory, -of_logps[rows])
            else:
                d_logits = softmax.log_probs(layer, tile, memory)
                probs = torch.exp(d_logits, out=tile.beginning(spare))
                d_logits.add_(softmax.entropy[rows, None]).mul_(of_entropy[rows]).add_(of_logps[rows])
                d_logits.mul_(probs).neg_()
            column, there = tile.find(labels)
            d_logits.scatter_add_(-1, column, torch.where(there, of_logps[rows], 0))
            if layer.slopes is not None:
                d_logits.mul_(tile.beginning(layer.slopes))
            _add_product(d_hidden[rows], d_logits.to(hidden.dtype), layer.narrow(tile))
            if d_weight is not None:
                _add_product(d_weight[columns], d_logits.T, hidden[rows])
            if d_bias is not None:
                d_bias[columns] += d_logits.sum(0)
        return d_hidden.to(hidden.dtype), None if options.into is not None else d_weight, d_bias, None, None


def _sum_tile(logits: Tensor, exponentials: Tensor, squares: bool) -> Tensor:
    """What is kept of a tile's logits z, [4, n]: m = max z, sum e^(z - m), sum e^(z - m) (z - m), sum e^2(z - m).

    The exponentials are written out; the logits are written over.
    """
    top = logits.amax(-1)
    torch.exp(logits.sub_(top[:, None]), out=exponentials)
    mass, moment = exponentials.sum(-1), logits.mul_(exponentials).sum(-1)
    square = torch.mul(exponentials, exponentials, out=logits).sum(-1) if squares else torch.ones_like(mass)
    return torch.stack((top, mass, moment, square))


def _join_tiles(sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of some rows, from the sums of their K tiles, [4, K, n]: normaliser, entropy, log sum_v p_v^2 and shifts."""
    tops, masses, moments, squares = sums
    below = tops - tops.amax(0)
    scales = below.exp()
    mass = (scales * masses).sum(0)
    normaliser = tops.amax(0) + mass.log()
    entropy = mass.log() - (scales * (moments + below * masses)).sum(0) / mass
    log_squares = (scales.square() * squares).sum(0).log() - 2 * mass.log()
    return normaliser, entropy, log_squares, tops - normaliser


def _choose_accumulator(weight: Tensor, into: Tensor | None) -> Tensor:
    """What the weight's gradient is added up in."""
    if into is None:
        return torch.zeros_like(weight)
    if into.grad is None:
        into.grad = torch.zeros_like(into)
    return into.grad


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, where the right side may be in half precision.

    CUDA multiplies half precision into a sum of float32. Elsewhere a left side in half precision asks for a product in
    it, and one in the total's precision for a product that is not rounded.
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
