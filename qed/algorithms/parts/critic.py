"""Settings of a critic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from qed.config.settings import require

FASTER = 10.0  # multiple of the policy's learning rate, as in verl's examples: 1e-5 against 1e-6


@dataclass(frozen=True)
class Critic:
    """The critic, which predicts an answer's outcome at each of its tokens."""

    trunk: Literal["copy", "policy"] = "copy"
    """What the value head reads: a separately trained copy of the policy, or the policy itself."""
    start: str = ""
    """Folder of a reward model or critic to start a copy from; empty copies the policy, with a zero-initialised
    head."""
    lr: float = 0.0
    """Peak learning rate of the critic, on the policy's schedule; 0 takes ten times learner.lr."""
    clip: float = 0.2
    """How far a value may move from the one used for the advantages before its loss is clipped; infinity never
    clips."""
    coefficient: float = 0.1
    """Weight of the value loss in the policy's loss, with critic.trunk=policy."""
    passes: int = 0
    """Passes over a step's rollouts to train a copy; 0 takes learner.passes."""
    batch_size: int = 0
    """Maximum rollouts per update of a copy; 0 takes learner.batch_size."""
    warmup_steps: int = 0
    """Steps at the start of the phase that train only the critic."""
    offload: bool = False
    """Keep a copy and its optimizer in CPU memory while they are not used."""

    @property
    def unread(self) -> dict[str, str]:
        """The settings that have no effect, each with the setting that disables it."""
        return {"coefficient": "critic.trunk=copy"} if self.trunk == "copy" else {}

    def __post_init__(self) -> None:
        """Refuse settings out of range, and those that a head on the policy's trunk does not use."""
        require(0 <= self.lr < math.inf, "algorithm.critic.lr must be a finite number, 0 or more.")
        require(self.clip > 0, "algorithm.critic.clip must be above 0.")
        require(0 < self.coefficient < math.inf, "algorithm.critic.coefficient must be a finite number above 0.")
        for name in ("passes", "batch_size", "warmup_steps"):
            require(getattr(self, name) >= 0, f"algorithm.critic.{name} must not be negative.")
        own = [name for name in ("start", "passes", "batch_size", "warmup_steps", "offload") if getattr(self, name)]
        require(
            self.trunk == "copy" or not own,
            f"algorithm.critic.{''.join(own[:1])} needs a critic with separate weights; with critic.trunk=policy, the "
            "policy's updates train it.",
        )
