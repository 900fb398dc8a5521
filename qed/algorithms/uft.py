"""UFT, unified fine-tuning (arXiv 2505.16984): answers begin with a hint whose length is annealed to 0.

loss = the policy gradient over the sampled tokens - hint sum_t log pi(h_t | x, h_<t) / N over the N hint tokens

A hint is the first l of five pieces of a demonstration, l ~ Binomial(5, p), the same for all answers of a group. p
falls along half a cosine from `most` to `least` over the first 60 % of the run, 300 of 500 steps in the paper (equation
B.1), and is 0 after that. The paper puts the hint into the prompt; in qed it is the beginning of the answer, which the
policy gradient's average excludes. In the authors' code, five pieces are the whole solution; in qed a
sixth piece, which holds the answer, is always left to the policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qed.algorithms.base import require
from qed.algorithms.parts import imitation
from qed.algorithms.parts.guidance import ExpertPrefix
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Terms, mask_off_policy

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Uft(PolicyGradient):
    """Reinforces the continuations of a hint, and imitates the hint with a small weight."""

    hint: float = 0.001
    """Weight of the log-likelihood of hint tokens, averaged over all of them."""
    guidance: ExpertPrefix = field(
        default_factory=lambda: ExpertPrefix(
            traces=-1, strategy="binomial", least=0.05, most=0.95, strategy_share=0.6, same_share=True
        )
    )

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(0 <= self.hint < math.inf, "algorithm.hint must be a finite number, 0 or more.")

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Compute the average's weights over sampled tokens, and those of a mean over hint tokens times `hint`."""
        given = batch.mask * batch.expert
        return super().weights(mask_off_policy(batch), length) + self.hint * given / given.sum().clamp(min=1)

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return rows with an advantage or, unless `hint` is 0, a hint."""
        live = super().has_gradient(batch)
        return live | imitation.find_imitated(batch) if self.hint else live

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """Compute the surrogate of sampled tokens, and - log pi of the hint."""
        return imitation.compute_terms(batch, logps, super().terms)
