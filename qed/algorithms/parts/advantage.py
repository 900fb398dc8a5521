"""The settings of an advantage: which estimator, and how its advantages are normalised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.algorithms.base import require
from qed.algorithms.parts.estimators import Estimator


@dataclass(frozen=True)
class AdvantageEstimator:
    """How rewards become advantages."""

    estimator: Estimator = "group"
    """How rewards become advantages."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    std_over: Literal["group", "batch"] = "group"
    """Which rewards the standard deviation is of: the group's, or all of the step's; the mean is the group's."""
    std_epsilon: float = 1e-6
    """Added to the standard deviation."""
    whiten: bool = False
    """Give the advantages of all tokens of the step the mean 0 and the variance 1."""
    discount: float = 1.0
    """What a reward counts one token earlier, for the estimator returns."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(self.std_epsilon >= 0, "algorithm.std_epsilon must not be negative.")
        require(0 <= self.discount <= 1, "algorithm.discount must lie in [0, 1].")
        require(
            self.discount == 1 or self.estimator == "returns",
            "algorithm.discount is read by the estimator returns alone; set algorithm.estimator=returns.",
        )
        require(
            self.std_over == "group" or (self.estimator == "group" and self.normalize_std),
            "algorithm.std_over=batch goes with the estimator group and algorithm.normalize_std.",
        )
