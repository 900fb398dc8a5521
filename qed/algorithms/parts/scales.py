"""Scales: the constants by which other libraries' losses differ from the same average here.

Here every average sums weights that are fixed over all rows of an optimizer step. Where another library's size depends
on how a step is cut into micro-batches, `scale` reproduces its constant part.
"""

from __future__ import annotations

from typing import Literal

from qed.algorithms.base import Average

Scale = Literal["qed", "cs336", "verl", "trl", "luffy"]


def compute_factor(scale: Scale, average: Average, rows: int, ranks: int = 1) -> float:
    """What multiplies the weights of an optimizer step of so many rows, to have a library's size of the gradient.

    `verl` is the revision of January 2026, whose seq-mean-token-sum-norm is not divided by the rows; `luffy` sums rows
    over the budget too. Both average the ranks' gradients, so that it is the rows of one rank that count. The row means
    of CS336 and the averages of TRL are the same as here, and so is verl from August 2026 on.
    """
    return rows / ranks if average == "constant" and scale in ("verl", "luffy") else 1.0
