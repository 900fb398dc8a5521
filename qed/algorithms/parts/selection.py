"""Settings that select what is trained: groups, completions and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.base import require


@dataclass(frozen=True)
class Selection:
    """Which groups, completions and tokens the policy loss includes."""

    dynamic_sampling: bool = False
    """Sample until enough groups have both correct and wrong answers; other groups are recorded and dropped."""
    max_rounds: int = 10
    """Maximum rounds of dynamic sampling; after them, a step continues with the groups that it has."""
    mask_truncated: bool = False
    """Exclude answers truncated at max_tokens from the loss and its average; they stay in their group's statistics."""
    top_entropy: float = 1.0
    """Apply the policy loss only to this share of the step's tokens, those with the highest entropy."""

    @property
    def unread(self) -> dict[str, str]:
        """The settings that have no effect, each with the setting that disables it."""
        return {} if self.dynamic_sampling else {"max_rounds": "dynamic_sampling=false"}

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(self.max_rounds >= 1, "algorithm.max_rounds must be at least 1.")
        require(0 < self.top_entropy <= 1, "algorithm.top_entropy must lie in (0, 1].")
