"""The loss that trains a critic with weights of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qed.algorithms.base import Algorithm
from qed.algorithms.parts.gae import compute_value_losses

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class ValueRegression(Algorithm):
    """The loss of a critic with weights of its own: its values move to the returns, averaged as the policy's loss."""

    clip: float = math.inf

    by_advantage: ClassVar[bool] = False

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return the rows with a return to learn."""
        return ((batch.mask != 0) & ~batch.returns.isnan()).any(1)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted sum of the value losses; the critic's values, [B, T], take the place of log-probs."""
        losses, clipped = compute_value_losses(logps, batch.values, batch.returns, self.clip)
        return (batch.weights * losses).sum(), {"critic/clipped": clipped.sum()}
