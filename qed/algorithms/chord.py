"""CHORD (arXiv 2508.11408): GRPO and SFT on demonstrations in every step, with a weight mu that falls along the run.

loss = (1 - mu) L_GRPO + mu L_SFT,    L_SFT = - sum_t phi_t log pi(y*_t | x, y*_<t) / N,
phi_t = p_t (1 - p_t) without a gradient, p_t = pi(y*_t | x, y*_<t), N the number of demonstration tokens

mu rises linearly from 0 to `mu_peak`, and then falls along half a cosine to `mu_valley`. phi gives little weight to
tokens that the policy is almost sure of or finds almost impossible. CHORD-mu is the schedule without phi (`phi: false`,
no warm-up, 0.9 to 0.05), CHORD-phi a constant mu of 0.1 with phi. The defaults are those of the authors' code, which
combines the two: its token means, its mu, and its warm-up of 200 and decay of 400 steps as shares of a run of 1000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from qed.algorithms.base import Average, StepContext, require
from qed.algorithms.parts.guidance import WholeDemonstrations
from qed.algorithms.parts.imitation import find_imitated
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.shaping import fill_masked
from qed.algorithms.parts.surrogates import Terms

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Chord(PolicyGradient):
    """Weights GRPO against SFT by a schedule, and SFT tokens by how uncertain the policy is about them."""

    average: Average = "token"
    """How sampled answers are averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    mu: float = 0.5
    """Weight of the SFT loss; the run sets it in each step by the schedule."""
    mu_peak: float = 0.5
    """Largest mu."""
    mu_valley: float = 0.02
    """Mu at the end."""
    mu_warmup: float = 0.2
    """Share of the steps over which mu rises to its peak."""
    mu_decay: float = 0.4
    """Share of the steps, after the warm-up, over which mu falls to its end value."""
    phi: bool = True
    """Multiply the SFT loss of each token by p (1 - p), where p is its probability."""
    guidance: WholeDemonstrations = field(default_factory=WholeDemonstrations)

    imitates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        for name in ("mu", "mu_peak", "mu_valley", "mu_warmup", "mu_decay"):
            require(0 <= getattr(self, name) <= 1, f"algorithm.{name} must lie in [0, 1].")
        require(
            self.mu_warmup + self.mu_decay <= 1, "algorithm.mu_warmup and algorithm.mu_decay must not add up to over 1."
        )

    def at_step(self, context: StepContext) -> Self:
        """Set mu to the schedule's value at the middle of the step."""
        return replace(self, mu=self._schedule((context.step - 0.5) / context.steps))

    def _schedule(self, done: float) -> float:
        """Compute mu after this share of the steps."""
        if done < self.mu_warmup:
            return self.mu_peak * done / self.mu_warmup
        if done >= self.mu_warmup + self.mu_decay:
            return self.mu_valley
        falling = (1 + math.cos(math.pi * (done - self.mu_warmup) / self.mu_decay)) / 2
        return self.mu_valley + (self.mu_peak - self.mu_valley) * falling

    def compute_metrics(self, batch: Batch) -> dict[str, float]:
        """Compute the metrics of the policy gradient, and add mu."""
        return super().compute_metrics(batch) | {"guidance/mu": self.mu}

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return rows with an advantage or, unless mu is 0, an imitated token."""
        live = super().has_gradient(batch)
        return live if self.mu else live & ~find_imitated(batch)

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Compute the weights of sampled tokens times 1 - mu, and those of demonstration tokens times mu."""
        weights = super().weights(batch, length)
        return (self.mu * weights).where(find_imitated(batch)[:, None], (1 - self.mu) * weights)

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """Compute the surrogate of sampled tokens, and - phi log pi of the imitated ones."""
        terms, stats = super().terms(batch, logps)
        if not self.phi:
            return terms, stats
        p = fill_masked(logps, batch).detach().exp()
        return (p * (1 - p) * terms).where(batch.expert.bool(), terms), stats
