"""The tiles of an output layer on a processor, each read once by a function in C++."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from qed.kernels import output
from qed.kernels.functions import KINDS, has_kernels
from qed.models.families import LogitTransform
from qed.models.fast_float32 import is_faster, is_narrow, multiply
from qed.training.output_tiles import LogitSlopes, OutputLayer, TileGradient, TileKernels
from qed.training.support import LabelSupport


def can_compile_tiles(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform, support: LabelSupport | None
) -> bool:
    """Return whether the functions compute log-probs of hidden states [N, H]: logits need no more than a divisor.

    Args:
        hidden: decide by their device and precision.
        weight: of the output layer.
        bias: of the output layer, or None.
        transform: of the logits.
        support: the tokens that the softmax is over; None for all.
    """
    plain = bias is None and support is None and transform.cap is None
    return plain and hidden.device.type == weight.device.type == "cpu" and hidden.dtype in KINDS and has_kernels()


def reduce_tiles(layer: OutputLayer, labels: Tensor, _: bool, keep: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Reduce all tiles, see `TileKernels`; squares cost next to nothing."""
    labels, kept = labels.contiguous(), []
    chosen = layer.allocate(len(labels)).zero_()
    sums = layer.allocate(4, len(layer.columns), len(labels))
    for tile in chain.from_iterable(layer.blocks):
        rows, columns, number = tile
        logits = multiply(layer.hidden[rows], layer.slice_weight(tile))
        own = sums[:, number, rows]
        output.reduce_logits(logits, labels[rows], columns.start, 1 / layer.divisor, chosen[rows], own)
        if keep:
            kept.append(logits)
    return chosen, sums, kept


def differentiate_tiles(
    layer: OutputLayer, labels: Tensor, slopes: LogitSlopes, kept: list[Tensor]
) -> Iterator[TileGradient]:
    """Yield the gradient of each tile's logits; its transpose is float32."""
    labels = labels.contiguous()
    slopes = LogitSlopes(*(None if one is None else one.contiguous() for one in slopes))  # type: ignore[arg-type]
    # MKL reads a transposed view as fast as any other, and oneDNN copies it first, see `add_multiplied`.
    needs_transpose = layer.hidden.dtype != torch.float32 or (is_faster() and not is_narrow(layer.hidden))
    memory = layer.allocate(layer.largest if needs_transpose else 0)
    spare = layer.hidden.new_empty(layer.largest if kept else 0)
    for number, tile in enumerate(chain.from_iterable(layer.blocks)):
        rows, columns, _ = tile
        logits = kept[number] if kept else multiply(layer.hidden[rows], layer.slice_weight(tile))
        out = tile.view_in(spare) if kept else logits
        transposed = memory[: logits.numel()].view(logits.shape[1], -1) if needs_transpose else None
        own = [None if one is None else one[rows] for one in slopes]
        output.reverse_logits(logits, labels[rows], columns.start, 1 / layer.divisor, own, out, transposed)
        yield TileGradient(tile, out, out.T if transposed is None else transposed)


KERNELS = TileKernels(reduce_tiles, differentiate_tiles, casts_weight=False)
