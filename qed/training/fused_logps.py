"""Log-probs and entropy of an output layer, computed tile by tile without all logits in memory.

A tile is a block of rows by a slice of the vocabulary. The forward pass reduces each tile to a few sums per row and
combines them. The backward pass recomputes the tiles, or reads stored results if they are small. With kernels, each
logit is read once; see compiled_tiles.py for CPUs and device_tiles.py for CUDA.
Related: arXiv 2411.09009, 2410.10989.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qed.models.families import IDENTITY, LogitTransform
from qed.training import compiled_tiles, device_tiles
from qed.training.output_tiles import (
    LogitSlopes,
    OutputLayer,
    Tile,
    TileGradient,
    TileKernels,
    add_product,
    add_tile,
    choose_accumulator,
    keeps_states,
)
from qed.training.support import LabelSupport

# Store exponentials or logits of all tiles for the backward pass if they take at most 256 MiB.
KEPT_BYTES = 1 << 28


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
        support: tokens that the softmax is over; None for all.

    Returns:
        Three [N] tensors in float32, or float64 if the hidden states are.

    With `into_grad`, the backward pass adds the weight's gradient directly to `weight.grad`, so that an existing
    gradient, of an earlier micro-batch or of tied embeddings, needs no second tensor. Use it with `loss.backward()` on
    a weight that is a parameter without hooks: `torch.autograd.grad` would not see this gradient.
    """
    graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden, weight))
    kernels = _find_kernels(hidden, weight, bias, transform, support)
    kept = hidden.dtype if kernels is not None else torch.promote_types(hidden.dtype, torch.float32)
    options = _Options(
        temperature,
        transform,
        squares,
        # The slope of a cap needs the logit, which is lost where the exponential rounds to 0.
        keep=graph and transform.cap is None and len(hidden) * len(weight) * kept.itemsize <= KEPT_BYTES,
        into=weight if into_grad and weight.is_leaf and weight.requires_grad else None,
        support=support,
        kernels=kernels,
    )
    logps, entropy, log_squares = _LinearLogps.apply(hidden, weight, bias, labels, options)
    return logps, entropy, log_squares


def _find_kernels(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform, support: LabelSupport | None
) -> TileKernels | None:
    if device_tiles.has_tile_kernels(hidden, bias, transform, support):
        return device_tiles.KERNELS
    if compiled_tiles.can_compile_tiles(hidden, weight, bias, transform, support):
        return compiled_tiles.KERNELS
    return None


# `keep` stores exponentials or logits; `into` is the weight whose `grad` receives the gradient.
class _Options(NamedTuple):
    temperature: float
    transform: LogitTransform
    squares: bool
    keep: bool
    into: Tensor | None
    support: LabelSupport | None
    kernels: TileKernels | None

    def build_layer(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> OutputLayer:
        """Build the output layer; some kernels need the weight cast to the precision of the hidden states."""
        weight = weight.to(hidden.dtype) if self.kernels is not None and self.kernels.casts_weight else weight
        return OutputLayer(hidden, weight, bias, self.temperature, self.transform, self.support)


class _Softmax(NamedTuple):
    """The results of the forward pass that the backward pass needs.

    `normaliser` is log sum_v e^(z_v) of each row, and `entropy` its entropy. `kept` has the exponentials of all tiles,
    or is empty; the log of an exponential plus the `shifts` of its tile and row is the log-prob.
    """

    normaliser: Tensor
    entropy: Tensor
    shifts: Tensor
    kept: Tensor

    def compute_log_probs(self, layer: OutputLayer, tile: Tile, memory: Tensor) -> Tensor:
        """Compute the log-probs of a tile."""
        if not len(self.kept):
            return layer.compute_logits(tile, memory).sub_(self.normaliser[tile.rows, None])
        # An exponential rounded to 0 has no finite log; after clamping, its product with the probability is still 0.
        exponentials = tile.view_within(self.kept, len(layer.weight))
        clamped = torch.clamp(exponentials, min=torch.finfo(memory.dtype).tiny, out=tile.view_in(memory))
        return clamped.log_().add_(self.shifts[tile.number, tile.rows, None])

    def compute_probs(self, layer: OutputLayer, tile: Tile, memory: Tensor, factors: Tensor) -> Tensor:
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
        layer = options.build_layer(hidden, weight, bias)
        if options.kernels is not None:
            chosen, sums, kept = options.kernels.reduce(layer, labels, options.squares, options.keep)
            normaliser, entropy, log_squares, _ = _join_tiles(sums)
            shifts = layer.allocate(0)
        else:
            chosen, log_squares, (normaliser, entropy, shifts, memory) = _reduce_tiles(layer, labels, options)
            kept = [memory]
        context.save_for_backward(hidden, weight, bias, labels, normaliser, entropy, shifts, *kept)
        context.options = options
        squares = log_squares.clone() if options.squares else layer.allocate(0)
        context.mark_non_differentiable(squares)
        return chosen - normaliser, entropy.clone(), squares

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, normaliser, entropy, shifts, *kept = context.saved_tensors
        options: _Options = context.options
        layer = options.build_layer(hidden, weight, bias)
        of_logps, of_entropy = (gradient / layer.divisor for gradient in gradients[:2])
        d_hidden = layer.allocate(*hidden.shape).zero_()
        d_weight = choose_accumulator(weight, options.into) if context.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and context.needs_input_grad[2] else None
        slopes = LogitSlopes(normaliser, entropy, of_logps, of_entropy if bool(of_entropy.any()) else None)
        if options.kernels is not None:
            tiles = options.kernels.differentiate(layer, labels, slopes, kept, d_weight)
        else:
            tiles = _differentiate_tiles(layer, labels, _Softmax(normaliser, entropy, shifts, *kept), slopes)
        for gradient in tiles:
            rows, columns, number = gradient.tile
            add_product(d_hidden[rows], gradient.of_logits, layer.slice_weight(gradient.tile))
            if d_weight is not None:
                if number == 0:  # most CPUs accumulate in the weight's precision, so cast a block of states once
                    keeps = hidden.is_cuda or keeps_states(d_weight, hidden)
                    states = hidden[rows] if keeps else hidden[rows].to(d_weight.dtype)
                add_tile(d_weight, gradient, states)
            if d_bias is not None:
                d_bias[columns] += gradient.transposed.sum(1)
        return d_hidden.to(hidden.dtype), None if options.into is not None else d_weight, d_bias, None, None


def _reduce_tiles(layer: OutputLayer, labels: Tensor, options: _Options) -> tuple[Tensor, Tensor, _Softmax]:
    """Reduce all tiles with torch's operations: the logit of each label, log sum_v p_v^2, and the softmax."""
    count, vocabulary = len(layer.hidden), len(layer.weight)
    chosen = layer.allocate(count).zero_()
    normaliser, entropy, log_squares = layer.allocate(3, count).unbind()
    shifts = layer.allocate(len(layer.columns), count)
    kept = layer.allocate(count * vocabulary if options.keep else 0)
    memory = layer.allocate(layer.largest)
    spare = kept if options.keep else layer.allocate(layer.largest)
    for block in layer.blocks:
        rows, sums = block[0].rows, []
        for tile in block:
            logits = layer.compute_logits(tile, memory)
            column, inside = tile.locate(labels)
            chosen[rows] += torch.where(inside, logits.gather(-1, column), 0).squeeze(-1)
            exponentials = tile.view_within(kept, vocabulary) if options.keep else tile.view_in(spare)
            sums.append(_sum_tile(logits, exponentials, options.squares))
        normaliser[rows], entropy[rows], log_squares[rows], shifts[:, rows] = _join_tiles(torch.stack(sums, 1))
    return chosen, log_squares, _Softmax(normaliser, entropy, shifts, kept)


def _differentiate_tiles(
    layer: OutputLayer, labels: Tensor, softmax: _Softmax, slopes: LogitSlopes
) -> Iterator[TileGradient]:
    """Yield the gradient of each tile's logits before the transform."""
    memory = layer.allocate(layer.largest)
    of_entropy = slopes.of_entropy
    spare = layer.allocate(layer.largest) if of_entropy is not None else None
    layer.slopes = layer.allocate(layer.largest) if layer.transform.cap is not None else None
    of_logps = slopes.of_logps[:, None]
    for tile in chain.from_iterable(layer.blocks):
        rows = tile.rows
        if of_entropy is None or spare is None:
            d_logits = softmax.compute_probs(layer, tile, memory, -of_logps[rows])
        else:
            d_logits = softmax.compute_log_probs(layer, tile, memory)
            probs = torch.exp(d_logits, out=tile.view_in(spare))
            d_logits.add_(softmax.entropy[rows, None]).mul_(of_entropy[rows, None]).add_(of_logps[rows])
            d_logits.mul_(probs).neg_()
        column, inside = tile.locate(labels)
        d_logits.scatter_add_(-1, column, torch.where(inside, of_logps[rows], 0))
        if layer.slopes is not None:
            d_logits.mul_(tile.view_in(layer.slopes))
        yield TileGradient(tile, d_logits.to(layer.hidden.dtype), d_logits.T)


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
