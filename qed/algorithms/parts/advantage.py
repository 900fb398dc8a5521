"""Settings of the advantage: the estimator, and the normalisation of its advantages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from qed.algorithms.base import require
from qed.algorithms.parts.estimators import Estimator


@dataclass(frozen=True)
class AdvantageEstimator:
    """How advantages are computed from rewards."""

    estimator: Estimator = "group"
    """How advantages are computed from rewards."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    std_over: Literal["group", "batch"] = "group"
    """Rewards over which to take the standard deviation: the group's, or all of the step; the mean is the group's."""
    std_epsilon: float = 1e-6
    """Added to the standard deviation."""
    whiten: bool = False
    """Normalise the advantages of all tokens of the step to mean 0 and variance 1."""
    discount: float = 1.0
    """Discount of later rewards per token, for the estimators returns and gae."""

    @property
    def unread(self) -> dict[str, str]:
        """The settings of the deviation that have no effect, each with the setting that disables it."""
        read = {"group": ("normalize_std", "std_over"), "passk": ("normalize_std",)}.get(self.estimator, ())
        divides = self.normalize_std if read else self.estimator == "gdpo"
        unread = {"normalize_std", "std_over"} - set(read)
        found = dict.fromkeys(unread, f"estimator={self.estimator}")
        reason = "normalize_std=false" if read else f"estimator={self.estimator}"
        return found if divides else {**found, "std_epsilon": reason}

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(0 <= self.std_epsilon < math.inf, "algorithm.std_epsilon must be a finite number, 0 or more.")
        require(0 <= self.discount <= 1, "algorithm.discount must lie in [0, 1].")
        require(
            self.discount == 1 or self.estimator in ("returns", "gae"),
            "algorithm.discount has an effect only with the estimators returns and gae (in ppo).",
        )
        require(
            self.std_over == "group" or (self.estimator == "group" and self.normalize_std),
            "algorithm.std_over=batch requires algorithm.estimator=group and algorithm.normalize_std=true.",
        )
