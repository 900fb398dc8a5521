"""Direct preference optimisation (arXiv 2305.18290) and its variants, on a fixed data set of preference pairs.

loss = - mean over pairs of log sigma(beta d),
d = log pi(y_w) / pi_ref(y_w) - log pi(y_l) / pi_ref(y_l)

`losses` selects another loss or the sum of several; docs/algorithms.md has their formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from qed.algorithms.parts.preferences import Preferences


@dataclass(frozen=True)
class Dpo(Preferences):
    """Raises the probability of chosen over rejected completions, relative to a reference model."""

    precompute_reference: bool = False
    """Score the pairs with the reference model once, before the first step. Its log-probs are then kept in the run's
    folder, and the model need not stay in memory."""

    online: ClassVar[bool] = False
    defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-6, "learner.batch_size": 64, "learner.schedule": "linear"}
    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    @property
    def reference(self) -> bool:
        """Whether a reference model is needed; not if its log-probs are precomputed."""
        return super().reference and not self.precompute_reference
