"""Uses of the policy's entropy: an adaptive entropy bonus, and training only on high-entropy tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch

CHANGE = 0.005  # change of the bonus's weight per step


def adapt_entropy_weight(weight: float, measured: float, target: float) -> float:
    """Compute the next weight of the bonus (Skywork-OR1, arXiv 2505.22312): it rises below the target, else falls to at
    least 0."""
    return max(0.0, weight + (CHANGE if measured < target else -CHANGE))


def keep_top_entropy(batch: Batch, entropy: Tensor, share: float, among: Tensor | None = None) -> Batch:
    """Keep advantages only on the `share` of the step's tokens with the highest entropy (arXiv 2506.01939).

    A token keeps its advantage if its entropy reaches the (1 - share)-quantile over all trained tokens of the step.
    Weights do not change, so the average is still over all tokens. With `among`, [B, T] bool, the quantile is only over
    these tokens, and the others keep their advantages.
    """
    chosen = batch.mask.bool() if among is None else batch.mask.bool() & among
    values = entropy[chosen]
    if not len(values):
        return batch
    # The smallest value not below the quantile; without the 1e-9, rounding errors could select the next one.
    place = math.ceil((1 - share) * (len(values) - 1) - 1e-9)
    threshold = values.sort().values[place]
    # Equal entropies may differ by rounding between micro-batches; the tolerance treats them alike.
    dropped = chosen & (entropy < threshold * (1 - 1e-6))
    return replace(batch, advantages=batch.advantages.masked_fill(dropped, 0.0))
