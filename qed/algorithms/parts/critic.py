"""The critic of PPO: its settings, and the loss that trains it where it is a model of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from qed.algorithms.base import Algorithm, require
from qed.algorithms.parts.gae import compute_value_losses

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch

FASTER = 10.0  # times the policy's learning rate, as in verl's examples: 1e-5 and 1e-6


@dataclass(frozen=True)
class Critic:
    """The model that predicts the outcome of an answer from each of its tokens."""

    trunk: Literal["copy", "policy"] = "copy"
    """What the value head reads: a copy of the policy that is trained apart, or the policy itself."""
    start: str = ""
    """Folder of a reward model or a critic that a copy starts from; empty copies the policy, with a head of zeros."""
    lr: float = 0.0
    """Peak learning rate of the critic, on the schedule of the policy; 0 takes ten times learner.lr."""
    clip: float = 0.2
    """How far a value may move from the one that the advantages read before its loss stops falling; infinity never
    clips."""
    coefficient: float = 0.1
    """Weight of the value loss in the policy's loss, with critic.trunk=policy."""
    passes: int = 0
    """Passes over the rollouts of a step that train a copy; 0 takes learner.passes."""
    batch_size: int = 0
    """Maximum rollouts per update of a copy; 0 takes learner.batch_size."""
    warmup_steps: int = 0
    """Steps at the start of the phase that train only the critic."""
    offload: bool = False
    """Keep a copy and its optimizer in CPU memory while they are not used."""

    def __post_init__(self) -> None:
        """Refuse settings out of range, and those that the policy's trunk has no use for."""
        require(0 <= self.lr < math.inf, "algorithm.critic.lr must be a finite number, 0 or more.")
        require(self.clip > 0, "algorithm.critic.clip must be above 0.")
        require(0 < self.coefficient < math.inf, "algorithm.critic.coefficient must be a finite number above 0.")
        for name in ("passes", "batch_size", "warmup_steps"):
            require(getattr(self, name) >= 0, f"algorithm.critic.{name} must not be negative.")
        own = [name for name in ("start", "passes", "batch_size", "warmup_steps", "offload") if getattr(self, name)]
        require(
            self.trunk == "copy" or not own,
            f"algorithm.critic.{''.join(own[:1])} is of a critic with weights of its own; with critic.trunk=policy the "
            "policy's own updates train it.",
        )


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
