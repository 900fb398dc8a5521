"""The suffixes of segments that a layer computes, if the outputs of other inputs are not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qed.models.segments import Segment, count_missing


class Suffixes(NamedTuple):
    """The inputs of a packed row to compute: of each segment, those from `skip` on, M inputs in total."""

    table: Tensor  # [segments, 6] int64: each segment's fields, `skip`, and the index of its first computed input
    places: Tensor | None  # [M] int64, positions in the packed row; None for all in order


def choose_suffixes(segments: Sequence[Segment], read: Tensor | None) -> Suffixes:
    """Choose the shortest suffixes that contain all inputs read, plus a few more for a length that computes fast.

    Args:
        segments: segments of a packed row on a CPU, in order.
        read: [R] int64, positions that are read; None for all.
    """
    fields = np.array(segments, dtype=np.int64)
    starts, lengths = fields[:, 0], fields[:, 1]
    skips = np.zeros(len(fields), dtype=np.int64)
    if read is not None and len(read):
        skips += lengths
        owners = np.searchsorted(starts, read.numpy(), side="right") - 1
        np.minimum.at(skips, owners, read.numpy() - starts[owners])
        missing = count_missing(int((lengths - skips).sum()), read.device)
        # Extend segments, the first ones first, until enough inputs are added or none are skipped.
        skips -= np.diff(np.minimum(skips.cumsum(), missing), prepend=0)
    counts = lengths - skips
    rows = counts.cumsum() - counts
    table = torch.from_numpy(np.column_stack([fields, skips, rows]))
    if not skips.any():
        return Suffixes(table, None)
    return Suffixes(table, torch.from_numpy(np.repeat(starts + skips - rows, counts) + np.arange(counts.sum())))


def locate(suffixes: Suffixes, read: Tensor) -> Tensor:
    """Return the indices of the inputs at some positions among those computed, [R] int64."""
    return read if suffixes.places is None else torch.searchsorted(suffixes.places, read)
