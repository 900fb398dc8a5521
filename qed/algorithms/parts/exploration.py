"""What is made of the policy's entropy beside a fixed bonus: a bonus that adapts, and the tokens of high entropy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch

CHANGE = 0.005  # of the bonus's weight in a step


def adapt_entropy_weight(weight: float, measured: float, target: float) -> float:
    """The bonus's weight for the next step (Skywork-OR1, arXiv 2505.22312): up below the target, else down, never
    below 0."""
    return max(0.0, weight + (CHANGE if measured < target else -CHANGE))


def keep_top_entropy(batch: Batch, entropy: Tensor, share: float) -> Batch:
    """The step's rows with an advantage only on the `share` of their tokens that have the highest entropy
    (arXiv 2506.01939).

    A token stays where its entropy reaches the (1 - share)-quantile over all trained tokens of the step; weights stay
    as they are, so that the average is still over all tokens.
    """
    chosen = batch.mask.bool()
    values = entropy[chosen]
    if not len(values):
        return batch
    # The smallest value that is not below the quantile; the subtrahend keeps rounding from asking for the next one.
    place = math.ceil((1 - share) * (len(values) - 1) - 1e-9)
    threshold = values.sort().values[place]
    # Equal entropies differ by rounding with the batch that they were computed in: they stay together.
    kept = entropy >= threshold * (1 - 1e-6)
    return replace(batch, advantages=batch.advantages.where(kept & chosen, 0.0))
