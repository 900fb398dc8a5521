"""The settings of what is trained on: which groups, which answers, which tokens."""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import require


@dataclass(frozen=True)
class Selection:
    """Which groups, answers and tokens the policy loss is of."""

    dynamic_sampling: bool = False
    """Sample until enough groups have right answers and wrong ones; the others are recorded and dropped."""
    max_rounds: int = 10
    """Rounds of dynamic sampling after which a step goes on with the groups it has."""
    mask_truncated: bool = False
    """Leave answers that reached the longest length out of the loss and its average; they stay in their group's
    statistics."""
    top_entropy: float = 1.0
    """The share of the step's tokens, those of the highest entropy, that the policy loss is kept on."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(self.max_rounds >= 1, "algorithm.max_rounds must be at least 1.")
        require(0 < self.top_entropy <= 1, "algorithm.top_entropy must lie in (0, 1].")
