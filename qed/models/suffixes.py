"""The ends of segments that a layer computes, where the output of the other inputs is not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qed.models.segments import Segment, count_missing


class Suffixes(NamedTuple):
    """Which inputs of a packed row are computed: of each segment those from `skip` on, M inputs in all."""

    table: Tensor  # [segments, 6] int64: the fields of each segment, `skip`, and the first of the M that is its own
    places: Tensor | None  # [M] int64, their positions in the packed row; None for all of them in order


def choose_suffixes(segments: Sequence[Segment], read: Tensor | None) -> Suffixes:
    """Choose the shortest suffixes with all inputs that are read, and a few more for a length that computes fast.

    Args:
        segments: of a packed row on a processor, in its order.
        read: [R] int64, the positions that are read; None for all.
    """
    fields = np.array(segments, dtype=np.int64)
    starts, lengths = fields[:, 0], fields[:, 1]
    skips = np.zeros(len(fields), dtype=np.int64)
    if read is not None and len(read):
        skips += lengths
        owners = np.searchsorted(starts, read.numpy(), side="right") - 1
        np.minimum.at(skips, owners, read.numpy() - starts[owners])
        missing = count_missing(int((lengths - skips).sum()), read.device)
        # Segments are extended, the first ones first, until enough inputs are added or nothing is left out.
        skips -= np.diff(np.minimum(skips.cumsum(), missing), prepend=0)
    counts = lengths - skips
    rows = counts.cumsum() - counts
    table = torch.from_numpy(np.column_stack([fields, skips, rows]))
    if not skips.any():
        return Suffixes(table, None)
    return Suffixes(table, torch.from_numpy(np.repeat(starts + skips - rows, counts) + np.arange(counts.sum())))


def locate(suffixes: Suffixes, read: Tensor) -> Tensor:
    """Return where the inputs at some positions are among those that are computed, [R] int64."""
    return read if suffixes.places is None else torch.searchsorted(suffixes.places, read)
