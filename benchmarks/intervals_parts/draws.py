"""Simulated evaluations: problems of equal or varying difficulty, and answers to them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qed.evaluation.estimators import compute_maj_at_k, compute_pass_at_k

Floats = NDArray[np.float64]
ACCURACIES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
EVEN = math.inf
CONCENTRATIONS = (EVEN, 5.0, 1.0, 0.3)  # a + b of the beta distribution of difficulties: lower means more variation


@dataclass(frozen=True)
class Design:
    """An evaluation of `problems` with `answers` per problem."""

    problems: int
    answers: int

    @property
    def name(self) -> str:
        """Return problems × answers."""
        return f"{self.problems}x{self.answers}"

    def list_concentrations(self) -> tuple[float, ...]:
        """Return the concentrations to simulate; one answer per problem cannot reveal how difficulties vary."""
        return (EVEN,) if self.answers == 1 else CONCENTRATIONS

    def list_measures(self) -> dict[str, Floats]:
        """Return the measures, each as a problem's value by its number of right answers; wrong answers are equal."""
        k, counts = self.answers, range(self.answers + 1)
        if k == 1:
            return {"accuracy": np.array([0.0, 1.0])}
        budget = min(8, k)
        return {
            "accuracy": np.arange(k + 1) / k,
            f"pass@{budget}": np.array([compute_pass_at_k(k, right, budget) for right in counts]),
            f"pass@{budget // 2}": np.array([compute_pass_at_k(k, right, budget // 2) for right in counts]),
            f"maj@{budget}": np.array(
                [compute_maj_at_k([right, k - right], [True, False], 0, budget) for right in counts]
            ),
        }


def draw_difficulties(source: np.random.Generator, shape: tuple[int, ...], accuracy: float, spread: float) -> Floats:
    """Draw chances of a right answer with mean `accuracy`, equal or from a beta distribution."""
    if math.isinf(spread):
        return np.full(shape, accuracy)
    return source.beta(accuracy * spread, (1 - accuracy) * spread, shape)


def weigh_counts(design: Design, accuracy: float, spread: float) -> Floats:
    """Return the exact probability of each number of right answers to a problem: binomial, or beta-binomial."""
    k = design.answers
    ways = np.array([math.lgamma(k + 1) - math.lgamma(c + 1) - math.lgamma(k - c + 1) for c in range(k + 1)])
    counts = np.arange(k + 1)
    if math.isinf(spread):
        return np.exp(ways + counts * math.log(accuracy) + (k - counts) * math.log1p(-accuracy))
    a, b = accuracy * spread, (1 - accuracy) * spread
    logs = [_log_beta(a + c, b + k - c) - _log_beta(a, b) for c in range(k + 1)]
    return np.exp(ways + np.array(logs))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
