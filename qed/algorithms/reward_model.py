"""Reward-model training on preference pairs (Bradley and Terry 1952, as in arXiv 2203.02155).

loss = mean over pairs of - log sigma(r_w - r_l - margin) + centre (r_w + r_l)^2

r is the score of a scalar head at the last token of a reply, its end token. The margin is that of Llama 2
(arXiv 2307.09288), from a column `margin` of the data; the second term keeps scores near 0 (arXiv 2312.09244). Both
are those of TRL's RewardTrainer, whose `center_rewards_coefficient` is `centre`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qed.algorithms.base import Algorithm, compute_token_weights, require
from qed.algorithms.parts.pair_losses import log_sigmoid

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class RewardModel(Algorithm):
    """Learns to score chosen replies above rejected ones."""

    margin: float = 0.0
    """By how much the chosen reply should score higher, if the data has no column margin."""
    centre: float = 0.0
    """Weight of the squared sum of a pair's scores, which keeps them near 0; TRL suggests 0.01."""

    online: ClassVar[bool] = False
    together: ClassVar[int] = 2
    by_advantage: ClassVar[bool] = False
    has_scalar_head: ClassVar[bool] = True
    step_means: ClassVar[tuple[str, ...]] = tuple(
        f"rewards/{figure}" for figure in ("chosen", "rejected", "margin", "accuracy")
    )
    defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-5, "learner.batch_size": 64, "learner.schedule": "linear"}
    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-3}

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(0 <= self.margin < math.inf, "algorithm.margin must be a finite number, 0 or more.")
        require(0 <= self.centre < math.inf, "algorithm.centre must be a finite number, 0 or more.")

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Give every pair the same weight, half of it to each of its rows."""
        return compute_token_weights(batch.mask, "sequence", length)

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return both rows of every pair that has a trained label in either, so that no pair is split."""
        return super().has_gradient(batch).view(-1, 2).any(1).repeat_interleave(2)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted sum over pairs; `logps` holds the scores, at each row's trained label.

        A pair's margin is stored as the advantage of its chosen row.
        """
        scores, weights = (logps * batch.mask).sum(1), batch.weights.sum(1)
        chosen, rejected, pairs = scores[0::2], scores[1::2], weights[0::2] + weights[1::2]
        difference = chosen - rejected
        margins = (batch.advantages * batch.mask).sum(1)[0::2]
        losses = -log_sigmoid(difference - margins)
        loss = (pairs * (losses + self.centre * (chosen + rejected) ** 2)).sum()
        figures = {"chosen": chosen, "rejected": rejected, "margin": difference, "accuracy": (difference > 0) * 1.0}
        return loss, {f"rewards/{name}": (pairs * values).sum().detach() for name, values in figures.items()}
