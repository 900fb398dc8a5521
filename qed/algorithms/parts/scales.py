"""Scales: constant factors between other libraries' losses and the same average in qed.

In qed, every average uses token weights computed over all rows of an optimizer step. If another library's
loss depends on the micro-batches, `scale` reproduces its constant factor.
"""

from __future__ import annotations

from typing import Literal

from qed.algorithms.base import Average

Scale = Literal["qed", "cs336", "verl", "trl", "luffy"]


def compute_factor(scale: Scale, average: Average, rows: int) -> float:
    """Return the factor on the weights of a step of `rows` rows that reproduces a library's gradient scale.

    `verl` is the revision of January 2026, whose seq-mean-token-sum-norm is not divided by the number of rows; `luffy`
    divides the sum only by the budget, too. The factor is for one rank; with more ranks, both average gradients over
    them. The row means of CS336 and the averages of TRL equal those of qed, as does verl from August 2026 on.
    """
    return float(rows) if average == "constant" and scale in ("verl", "luffy") else 1.0
