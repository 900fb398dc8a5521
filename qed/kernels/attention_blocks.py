"""How the kernels of a packed row's attention cut it into blocks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NARROW, MEDIUM = 64, 128  # the widest heads for which blocks are large, and those for which they are not the smallest


class Launch(NamedTuple):
    """The sizes of a kernel's blocks, and how it is compiled."""

    queries: int
    keys: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        """Return the arguments of a kernel."""
        return {"QUERIES": self.queries, "KEYS": self.keys, "num_warps": self.warps, "num_stages": self.stages}


class Launches(NamedTuple):
    """Of the forward pass, of the gradients of queries, and of those of keys and values.

    Of the first two, the queries of a block are a multiple of the keys; of the last one it is the other way round.
    """

    forward: Launch
    queries: Launch
    keys: Launch


class Blocks(NamedTuple):
    """The blocks of a packed row of N inputs; those that take longest come first."""

    queries: Tensor  # [B, 5] int32: first query, end of its segment, start of its segment and its prompt, prompt's end
    slopes: Tensor  # likewise, with the sizes of the backward pass
    keys: Tensor  # [C, 3] int32: first key, end of its segment, and of the queries that see it
    positions: Tensor  # [N] int32, in each input's row
    window: int  # of inputs that an input sees, itself included; 0 for all


def choose_launches(width: int, dtype: torch.dtype) -> Launches:
    """Choose sizes for heads of a width: the fastest on an H200 whose blocks fit the 99 KiB of other devices too."""
    if dtype == torch.float32 or width > MEDIUM:
        size = 16 if dtype == torch.float32 and width > MEDIUM else 32
        return Launches(*[Launch(size, size, 4, 1)] * 3)
    if width > NARROW:
        return Launches(*[Launch(64, 64, 4, 2)] * 3)
    return Launches(Launch(128, 64, 8, 3), Launch(64, 32, 4, 3), Launch(32, 64, 4, 3))
