"""Intervals of means: how often they cover the truth, and their width compared with an oracle's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from intervals_parts.draws import ACCURACIES, EVEN, Design, draw_difficulties, weigh_counts
from qed.evaluation.distributions import Z
from qed.evaluation.intervals import compute_mean_intervals
from qed.evaluation.summary import average_tasks

TASKS = (Design(30, 8), Design(100, 4), Design(500, 1))


def measure_designs(designs: Sequence[Design], simulations: int) -> Iterator[dict[str, Any]]:
    """Yield a cell for each design, accuracy, unevenness and measure.

    The oracle's interval is the mean ± 1.96 standard errors, which it knows exactly; it is not valid near 0 and 1.
    """
    for number, design in enumerate(designs):
        for spread in design.list_concentrations():
            for accuracy in ACCURACIES:
                source = np.random.default_rng([1, number, int(1000 * accuracy)])
                chances = draw_difficulties(source, (design.problems, simulations), accuracy, spread)
                right = source.binomial(design.answers, chances)
                weights = weigh_counts(design, accuracy, spread)
                for measure, at in design.list_measures().items():
                    truth = float(weights @ at)
                    oracle = 2 * Z * float(np.sqrt(max(0.0, weights @ at**2 - truth**2) / design.problems))
                    low, high = np.array(compute_mean_intervals(at[right])).T
                    yield {
                        "kind": "mean",
                        "design": design.name,
                        "even": spread == EVEN,
                        "accuracy": accuracy,
                        "spread": None if spread == EVEN else spread,
                        "measure": measure,
                        "truth": truth,
                        "coverage": float(((low <= truth + 1e-12) & (truth <= high + 1e-12)).mean()),
                        "width": float((high - low).mean()),
                        "oracle_width": oracle,
                    }


def measure_tasks(simulations: int) -> Iterator[dict[str, Any]]:
    """Yield cells for the mean of three tasks with different problems, and of columns over the same problems."""
    for spread in (EVEN, 1.0):
        for accuracy in ACCURACIES:
            source = np.random.default_rng([2, int(1000 * accuracy)])
            shares = []
            for design in TASKS:
                chances = draw_difficulties(source, (design.problems, simulations), accuracy, spread)
                shares.append(source.binomial(design.answers, chances) / design.answers)
            problems = draw_difficulties(source, (100, simulations), accuracy, spread)
            columns = [source.binomial(1, problems).astype(float) for _ in range(3)]
            bounds = [(own.mean(0), compute_mean_intervals(own)) for own in shares]
            of_tasks = [
                average_tasks([{"accuracy": float(m[i]), "ci_lo": b[i][0], "ci_hi": b[i][1]} for m, b in bounds])
                for i in range(simulations)
            ]
            kinds = {
                "mean of tasks": [(each["ci_lo"], each["ci_hi"]) for each in of_tasks],
                "mean of columns": compute_mean_intervals(np.mean(columns, axis=0)),
            }
            for name, ends in kinds.items():
                low, high = np.array(ends).T
                coverage = float(((low <= accuracy) & (accuracy <= high)).mean())
                yield {"kind": name, "design": name, "even": spread == EVEN, "accuracy": accuracy, "coverage": coverage}
