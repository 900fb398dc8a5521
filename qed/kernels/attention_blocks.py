"""The blocks into which the attention kernels divide a packed row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NARROW, MEDIUM = 64, 128  # the widest heads with large blocks, and the widest with medium ones


class Launch(NamedTuple):
    """The block sizes of a kernel, and how it is compiled."""

    queries: int
    keys: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        """Return the kernel's keyword arguments."""
        return {"QUERIES": self.queries, "KEYS": self.keys, "num_warps": self.warps, "num_stages": self.stages}


class Launches(NamedTuple):
    """The launches of the forward pass, of the gradients of queries, and of the gradients of keys and values.

    In the first two, a block has a multiple of as many queries as keys; in the last one it is the reverse.
    """

    forward: Launch
    queries: Launch
    keys: Launch


class Blocks(NamedTuple):
    """The blocks of a packed row of N tokens; those that take longest come first."""

    queries: Tensor  # [B, 5] int32: first query, end of its segment, start of its segment and its prompt, prompt's end
    slopes: Tensor  # the same, with the sizes of the backward pass
    keys: Tensor  # [C, 3] int32: first key, end of its segment, end of the queries that attend to it
    positions: Tensor  # [N] int32, each token's position in its sequence
    window: int  # tokens that a token attends to, including itself; 0 for all


def choose_launches(width: int, dtype: torch.dtype) -> Launches:
    """Choose sizes for heads of a width: the fastest on an H200 that also fit the 99 KiB of other devices."""
    if dtype == torch.float32 or width > MEDIUM:
        size = 16 if dtype == torch.float32 and width > MEDIUM else 32
        return Launches(*[Launch(size, size, 4, 1)] * 3)
    if width > NARROW:
        return Launches(*[Launch(64, 64, 4, 2)] * 3)
    return Launches(Launch(128, 64, 8, 3), Launch(64, 32, 4, 3), Launch(32, 64, 4, 3))
