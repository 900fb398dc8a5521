"""Direct preference optimisation (arXiv 2305.18290) and the losses that grew from it, on pairs that are there
beforehand.

loss = - mean over pairs of log sigma(beta d),
d = log pi(y_w) / pi_ref(y_w) - log pi(y_l) / pi_ref(y_l)

`losses` names others in its place, or several that are added up; their formulas stand in docs/algorithms.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from qed.algorithms.parts.preferences import Preferences


@dataclass(frozen=True)
class Dpo(Preferences):
    """Raises the probability of chosen answers against rejected ones, measured from a reference."""

    precompute_reference: bool = False
    """Score the reference once, before the first step, and keep its log-probs in the run's folder, not the model."""

    online: ClassVar[bool] = False
    defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-6, "learner.batch_size": 64, "learner.schedule": "linear"}
    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    @property
    def reference(self) -> bool:
        """What was scored beforehand needs no model to be kept."""
        return super().reference and not self.precompute_reference
