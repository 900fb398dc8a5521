"""Computes the tiles of an output layer on a CPU; a C++ function reads each once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from qed.kernels import output
from qed.kernels.functions import KINDS, has_kernels
from qed.models.families import LogitTransform
from qed.models.fast_float32 import is_faster, is_narrow, multiply
from qed.training.output_tiles import LogitSlopes, OutputLayer, Tile, TileGradient, TileKernels, keeps_states
from qed.training.support import LabelSupport


def can_compile_tiles(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform, support: LabelSupport | None
) -> bool:
    """Return whether the C++ functions can compute log-probs of hidden states [N, H]: logits may only be divided.

    Args:
        hidden: hidden states, whose device and precision decide.
        weight: weight of the output layer.
        bias: bias of the output layer, or None.
        transform: transform of the logits.
        support: tokens that the softmax is over; None for all.
    """
    plain = bias is None and support is None and transform.cap is None and transform.scale > 0
    return plain and hidden.device.type == weight.device.type == "cpu" and hidden.dtype in KINDS and has_kernels()


def reduce_tiles(layer: OutputLayer, labels: Tensor, _: bool, keep: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Reduce all tiles, see `TileKernels`; squares cost almost nothing."""
    labels, kept = labels.contiguous(), []
    chosen = layer.allocate(len(labels)).zero_()
    sums = layer.allocate(4, len(layer.columns), len(labels))
    for tile in chain.from_iterable(layer.blocks):
        rows, columns, number = tile
        logits = _multiply(layer, tile)
        own = sums[:, number, rows]
        output.reduce_logits(logits, labels[rows], columns.start, 1 / layer.divisor, chosen[rows], own)
        if keep:
            kept.append(logits)
    return chosen, sums, kept


def differentiate_tiles(
    layer: OutputLayer, labels: Tensor, slopes: LogitSlopes, kept: list[Tensor], total: Tensor | None
) -> Iterator[TileGradient]:
    """Yield the gradient of each tile's logits, also in float32 for the weight's gradient; see `TileGradient`."""
    labels, slopes = labels.contiguous(), slopes.make_contiguous()
    splits = total is not None and keeps_states(total, layer.hidden)
    adds = total is not None and not splits
    memory = layer.allocate(layer.largest if adds else 0)
    room = layer.hidden.new_empty(layer.largest if splits else 0)
    spare = layer.hidden.new_empty(layer.largest if kept else 0)
    for number, tile in enumerate(chain.from_iterable(layer.blocks)):
        rows, columns, _ = tile
        logits = kept[number] if kept else _multiply(layer, tile)
        out = tile.view_in(spare) if kept else logits
        transposes = adds and _needs_transpose(layer.hidden[rows])
        transposed = memory[: logits.numel()].view(logits.shape[1], -1) if transposes else None
        lost = tile.view_in(room) if splits else None
        own, factor = slopes.select(rows), 1 / layer.divisor
        output.reverse_logits(logits, labels[rows], columns.start, factor, own, (out, lost, transposed))
        yield TileGradient(tile, out, out.T if transposed is None else transposed, lost)


def _multiply(layer: OutputLayer, tile: Tile) -> Tensor:
    with torch.autocast("cpu", enabled=False):  # logits have the precision of the hidden states
        return multiply(layer.hidden[tile.rows], layer.slice_weight(tile))


def _needs_transpose(hidden: Tensor) -> bool:
    """Return whether a tile's weight gradient needs a transposed copy: in half precision, or for oneDNN."""
    return hidden.dtype != torch.float32 or (is_faster() and not is_narrow(hidden))


KERNELS = TileKernels(reduce_tiles, differentiate_tiles, casts_weight=False)
