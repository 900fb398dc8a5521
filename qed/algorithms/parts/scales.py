"""Scales: constant factors between the losses of other libraries and the same average in qed.

In qed every average sums token weights that were computed over all rows of an optimizer step. Where another library's
loss depends on the micro-batches, `scale` reproduces its constant factor, and a function below reproduces the original
from the micro-batches, [[rows of a micro-batch], …]; it is for comparisons, not for training.
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
    """Return the factor on the weights of a step of `rows` rows that gives a library's gradient scale.

    `verl` is the revision of January 2026, whose seq-mean-token-sum-norm is not divided by the rows; `luffy` divides
    the sum by the budget alone too. Both average gradients over ranks, so the factor is the rows of one rank. The row
    means of CS336 and the averages of TRL equal those of qed, and so does verl from August 2026 on.
    """
    return rows / ranks if average == "constant" and scale in ("verl", "luffy") else 1.0


def average_as_verl_legacy(loss: Tensor, mask: Tensor, cuts: Cuts, average: Average, length: int = 1) -> Tensor:
    """Compute the loss of verl's legacy actor: each micro-batch's average, times its share of the mini-batch's rows.

    With unequal micro-batches its token mean is not the token mean of the mini-batch. A micro-batch's average leaves
    out rows without a response token.
    """
    total = loss.new_zeros(())
    for cut in cuts:
        rows = [row for row in cut if bool(mask[row].any())]
        average_loss = (loss[rows] * compute_token_weights(mask[rows], average, length)).sum() * compute_factor(
            "verl", average, len(rows)
        )
        total = total + average_loss * len(cut) / sum(len(part) for part in cuts)
    return total


def average_as_trl_bnpo(loss: Tensor, mask: Tensor, cuts: Cuts) -> Tensor:
    """Compute TRL's `bnpo`: the sum of the micro-batches' token means, divided by the number of micro-batches."""
    return sum_as_luffy(loss, mask, cuts) / len(cuts)


def sum_as_luffy(loss: Tensor, mask: Tensor, cuts: Cuts, length: int = 0) -> Tensor:
    """Compute LUFFY's sum over micro-batches, which is not divided by the number of accumulation steps.

    With a length each micro-batch contributes the sum over its tokens / length, as the policy loss in its scripts.
    Without, it contributes a token mean, so the entropy bonus there is multiplied by the number of micro-batches.
    """
    parts = [list(cut) for cut in cuts]
    divisors = [length or mask[part].sum().clamp(min=1) for part in parts]
    sums = [(loss[part] * mask[part]).sum() for part in parts]
    return loss.new_zeros(()) + sum(value / divisor for value, divisor in zip(sums, divisors, strict=True))
