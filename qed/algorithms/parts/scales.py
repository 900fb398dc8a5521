"""Scales: the constants by which other libraries' losses differ from the same average here, and what no constant is.

Here every average of `spread` sums weights that were fixed over all rows of an optimizer step. Where another library's
size depends on how a step is cut, `scale` reproduces its constant part, and the original stands below as a function of
the cuts, [[rows of a micro-batch], …], to compare with and not to train with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from qed.algorithms.base import Average, compute_token_weights

if TYPE_CHECKING:
    from torch import Tensor

Scale = Literal["qed", "cs336", "verl", "trl", "luffy"]
Cuts = Sequence[Sequence[int]]


def compute_factor(scale: Scale, average: Average, rows: int, ranks: int = 1) -> float:
    """What multiplies the weights of an optimizer step of so many rows, to have a library's size of the gradient.

    `verl` is the revision of January 2026, whose seq-mean-token-sum-norm is not divided by the rows; `luffy` sums rows
    over the budget too. Both average the ranks' gradients, so that it is the rows of one rank that count. The row means
    of CS336 and the averages of TRL are the same as here, and so is verl from August 2026 on.
    """
    return rows / ranks if average == "constant" and scale in ("verl", "luffy") else 1.0


def average_as_verl_legacy(loss: Tensor, mask: Tensor, cuts: Cuts, average: Average, length: int = 1) -> Tensor:
    """verl's legacy actor: the average of each micro-batch by itself, times its share of the mini-batch's rows.

    With unequal micro-batches its token mean is not the token mean of the mini-batch. Rows without a response token are
    left out of a micro-batch's average; here every row has one.
    """
    total = loss.new_zeros(())
    for cut in cuts:
        rows = [row for row in cut if bool(mask[row].any())]
        own = (loss[rows] * compute_token_weights(mask[rows], average, length)).sum() * compute_factor(
            "verl", average, len(rows)
        )
        total = total + own * len(cut) / sum(len(part) for part in cuts)
    return total


def average_as_trl_bnpo(loss: Tensor, mask: Tensor, cuts: Cuts) -> Tensor:
    """TRL's `bnpo`: the token mean of each micro-batch by itself, divided by how many micro-batches there are."""
    return sum_as_luffy(loss, mask, cuts) / len(cuts)


def sum_as_luffy(loss: Tensor, mask: Tensor, cuts: Cuts, length: int = 0) -> Tensor:
    """LUFFY's sum over micro-batches, whose divisor for accumulation is always 1.

    With a length each micro-batch is the sum over its tokens / length, which is how the policy loss is scaled in its
    scripts. Without, it is a token mean: so the entropy bonus there is as many times its coefficient as there are
    micro-batches.
    """
    parts = [list(cut) for cut in cuts]
    divisors = [length or mask[part].sum().clamp(min=1) for part in parts]
    sums = [(loss[part] * mask[part]).sum() for part in parts]
    return loss.new_zeros(()) + sum(value / divisor for value, divisor in zip(sums, divisors, strict=True))
