"""The loss of a critic with separate weights."""

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
    """Loss of a critic with separate weights: its values move towards the returns, averaged like the policy loss."""

    clip: float = math.inf

    by_advantage: ClassVar[bool] = False

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return the rows with a return to learn from."""
        return ((batch.mask != 0) & ~batch.returns.isnan()).any(1)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted sum of the value losses; `logps` holds the critic's values, [B, T]."""
        losses, clipped = compute_value_losses(logps, batch.values, batch.returns, self.clip)
        return (batch.weights * losses).sum(), {"critic/clipped": clipped.sum()}
