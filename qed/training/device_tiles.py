"""The tiles of an output layer on a CUDA device in half precision, each read once by a kernel in Triton.

Logits stay in the half precision of the product. Nothing is kept for the backward pass, which computes the products
again, as that is faster than writing and reading exponentials in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain

import torch
from torch import Tensor

from qed.kernels.functions import has_half_kernels
from qed.kernels.trials import try_kernels
from qed.models.families import IDENTITY, LogitTransform
from qed.training.output_tiles import ALIGNED, LogitSlopes, OutputLayer, Tile, TileGradient, TileKernels
from qed.training.support import LabelSupport

# Rows, width and vocabulary of the layer that tests the kernels: several blocks of columns and a partial one.
TRIAL = (70, 64, 5008)
TRIAL_ERROR = 0.02  # largest relative error allowed; bfloat16 rounding alone stays below 0.005


def has_tile_kernels(
    hidden: Tensor, bias: Tensor | None, transform: LogitTransform, support: LabelSupport | None
) -> bool:
    """Return whether the kernels can compute log-probs of hidden states [N, H]: logits may only be divided.

    Args:
        hidden: hidden states, whose device and precision decide.
        bias: bias of the output layer, or None.
        transform: transform of the logits.
        support: tokens that the softmax is over; None for all.
    """
    plain = bias is None and support is None and transform.cap is None
    place = hidden.device, hidden.dtype
    return plain and has_half_kernels(*place) and not find_fault(*place)


@cache
@torch.no_grad()
def find_fault(device: torch.device, dtype: torch.dtype) -> str:
    """Compare the kernels with torch's operations on a small layer; return a description of a fault, or ""."""
    rows, width, vocabulary = TRIAL
    source = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(each, width, generator=source).to(device, dtype) for each in (rows, vocabulary))
    labels = torch.randint(vocabulary, (rows,), generator=source).to(device)
    of_logps, of_entropy = torch.randn(2, rows, generator=source).to(device)
    layer = OutputLayer(hidden, weight, None, 2.0, IDENTITY)
    logits = (hidden @ weight.T).float() / 2
    logps = logits.log_softmax(-1)
    entropy = -(logps.exp() * logps).sum(-1)
    expected = (logps + entropy[:, None]).mul_(of_entropy[:, None]).add_(of_logps[:, None]).mul_(-logps.exp())
    expected.scatter_add_(-1, labels[:, None], of_logps[:, None])

    def compute() -> Iterator[tuple[Tensor, Tensor]]:
        chosen, sums, kept = reduce_tiles(layer, labels, True, False)
        normaliser = (sums[0] + sums[1].log()).logsumexp(0)
        yield chosen, logits.gather(-1, labels[:, None]).squeeze(-1)
        yield normaliser, logits.logsumexp(-1)
        yield (2 * sums[0] + sums[3].log()).logsumexp(0), (2 * logits).logsumexp(-1)
        slopes = LogitSlopes(normaliser, entropy, of_logps, of_entropy)
        for tile, found, *_ in differentiate_tiles(layer, labels, slopes, kept, None):
            yield found, expected[tile.rows, tile.columns]

    return try_kernels("The kernels of the output layer", compute, TRIAL_ERROR)


def reduce_tiles(layer: OutputLayer, labels: Tensor, squares: bool, _: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Reduce all tiles, see `TileKernels` and `reduce_tile`; no logits are kept."""
    from qed.kernels.cuda.output_tiles import reduce_tile  # noqa: PLC0415 -- loads Triton, which may be missing

    labels, memory = labels.contiguous(), _allocate(layer)
    chosen = layer.allocate(len(labels)).zero_()
    sums = layer.allocate(4, len(layer.columns), len(labels))
    for tile in chain.from_iterable(layer.blocks):
        rows, columns, number = tile
        logits = _multiply(layer, tile, memory)
        own = sums[:, number, rows]
        reduce_tile(logits, labels[rows], columns.start, layer.divisor, own, chosen[rows], squares)
    return chosen, sums, []


def differentiate_tiles(
    layer: OutputLayer, labels: Tensor, slopes: LogitSlopes, _: list[Tensor], __: Tensor | None
) -> Iterator[TileGradient]:
    """Yield the gradient of each tile's logits, in half precision."""
    from qed.kernels.cuda.output_tiles import differentiate_tile  # noqa: PLC0415

    memory = _allocate(layer)
    labels, slopes = labels.contiguous(), slopes.make_contiguous()
    for tile in chain.from_iterable(layer.blocks):
        rows = tile.rows
        logits = _multiply(layer, tile, memory)
        differentiate_tile(logits, labels[rows], tile.columns.start, layer.divisor, *slopes.select(rows))
        yield TileGradient(tile, logits, logits.T)


def _allocate(layer: OutputLayer) -> Tensor:
    """Allocate memory for a tile, with a stride that aligns every row."""
    apart = -(-layer.width // ALIGNED) * ALIGNED
    return layer.hidden.new_empty(layer.height, apart)


def _multiply(layer: OutputLayer, tile: Tile, memory: Tensor) -> Tensor:
    hidden = layer.hidden[tile.rows]
    logits = memory[: len(hidden), : tile.columns.stop - tile.columns.start]
    return torch.mm(hidden, layer.slice_weight(tile).T, out=logits)


KERNELS = TileKernels(reduce_tiles, differentiate_tiles, casts_weight=True)
