"""Supervised fine-tuning: the negative log-likelihood of the response tokens of demonstrations.

loss = - sum_t w_t log pi(y_t | x, y_<t)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qed.algorithms.base import Algorithm

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Sft(Algorithm):
    """Imitates demonstrations."""

    online: ClassVar[bool] = False
    by_advantage: ClassVar[bool] = False
    defaults: ClassVar[dict[str, Any]] = {
        "learner.lr": 1e-5,
        "learner.batch_size": 32,
        "learner.schedule": "linear",
    }
    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-3, "learner.warmup_steps": 20}

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted negative log-likelihood."""
        return -(batch.weights * logps.masked_fill(batch.mask == 0, 0)).sum(), {}
