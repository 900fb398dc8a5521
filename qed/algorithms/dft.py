"""Dynamic fine-tuning (arXiv 2508.05629): SFT with each token weighted by its probability under the policy.

loss = - sum_t w_t sg(pi(y_t | x, y_<t)) log pi(y_t | x, y_<t), sg(x) is x without its gradient

The gradient of SFT divides by pi, so unlikely tokens dominate it; the factor pi cancels that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qed.algorithms.sft import Sft

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Dft(Sft):
    """Imitates demonstrations, with less weight on unlikely tokens."""

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted negative log-likelihood, with each token multiplied by its probability."""
        logps = logps.masked_fill(batch.mask == 0, 0)
        return -(batch.weights * logps.detach().exp() * logps).sum(), {}
