"""Dynamic fine-tuning (arXiv 2508.05629): SFT in which every token weighs as much as the policy believes in it.

loss = - sum_t w_t sg(pi(y_t | x, y_<t)) log pi(y_t | x, y_<t), sg stops the gradient

The gradient of SFT divides by pi, so what the policy finds unlikely pulls hardest; the factor takes that back.
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
    """Imitates demonstrations, least where they surprise."""

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted negative log-likelihood, each token's times its own probability."""
        logps = logps.masked_fill(batch.mask == 0, 0)
        return -(batch.weights * logps.detach().exp() * logps).sum(), {}
