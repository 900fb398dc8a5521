"""Paired tests: coverage, false alarms, contradictions of interval and p-value, and power compared with an oracle's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from intervals_parts.draws import ACCURACIES, EVEN, Design, Floats, draw_difficulties
from qed.evaluation.arms import compute_arms_differences
from qed.evaluation.distributions import Z
from qed.evaluation.intervals import MIN_PROBLEMS
from qed.evaluation.paired import compute_difference, compute_differences

LEVEL = 0.05
REACH = 2.8  # standard errors of a difference that an oracle detects with 80 % power
ORACLE = 100_000  # problems used to compute the oracle's variance
ARMS = ((2, 2), (3, 3), (5, 5), (2, 5), (1, 3))
SEEDS = (0.0, 0.1, 0.3)  # standard deviation of a run's log odds over seeds


def print_differences(differences: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the bounds and p-values that `qed compare` prints for each column; NaN where it prints no p-value."""
    if len(differences) < MIN_PROBLEMS or (np.abs(np.abs(differences) - 0.5) < 0.499).any():
        low, high, p_values = compute_differences(differences)
        return low, high, p_values if len(differences) >= MIN_PROBLEMS else np.full_like(low, np.nan)
    counts = np.array([(differences > 0.5).sum(0), (differences < -0.5).sum(0)])
    kinds, places = np.unique(counts, axis=1, return_inverse=True)
    signs = np.zeros((kinds.shape[1], len(differences)))
    for row, (gained, lost) in zip(signs, kinds.T, strict=True):
        row[:gained], row[gained : gained + lost] = 1, -1
    found = np.array([compute_difference(row) for row in signs], dtype=np.float64).T
    low, high, p_values = found[:, places.reshape(-1)]
    return low, high, p_values


def measure_designs(designs: Sequence[Design], simulations: int) -> Iterator[dict[str, Any]]:
    """Yield a cell for each design, accuracy, unevenness, measure and kind of change."""
    for number, design in enumerate(designs):
        for spread in design.list_concentrations():
            for accuracy in ACCURACIES:
                source = np.random.default_rng([3, number, int(1000 * accuracy)])
                before = draw_difficulties(source, (design.problems, simulations), accuracy, spread)
                wide = draw_difficulties(source, (ORACLE // 20, 20), accuracy, spread)
                for change in ("none", "other problems", "half", "found"):
                    if cells := _measure_change(source, design, (before, wide), change):
                        for cell in cells:
                            about = {"design": design.name, "even": spread == EVEN, "accuracy": accuracy}
                            yield {"kind": "difference", "change": change, **about, **cell}


def _measure_change(
    source: np.random.Generator, design: Design, chances: tuple[Floats, Floats], change: str
) -> list[dict[str, Any]]:
    k = design.answers
    before, wide = chances
    after, shifted = (_change(source, each, change, design) for each in chances)
    if after is None or shifted is None:
        return []
    counts = [source.binomial(k, each) for each in (before, after, wide, shifted)]
    cells = []
    for measure, at in design.list_measures().items():
        low, high, p_values = print_differences(at[counts[1]] - at[counts[0]])
        spread = at[counts[3]] - at[counts[2]]
        null = change in ("none", "other problems")
        truth = 0.0 if null else float(spread.mean())
        error = float(spread.std() / np.sqrt(design.problems))
        if not null and truth == 0:
            continue
        means = (at[counts[1]] - at[counts[0]]).mean(0)
        found = p_values < LEVEL
        cells.append(
            {
                "measure": measure,
                "coverage": float(((low <= truth + 1e-9) & (truth <= high + 1e-9)).mean()),
                "found": float(found.mean()),
                "oracle_found": float((np.abs(means) > Z * error).mean()) if error else 0.0,
                "contradictions": int((found != ((low > 0) | (high < 0))).sum()),
                "width": float((high - low).mean()),
                "oracle_width": 2 * Z * error,
            }
        )
    return cells


def _change(source: np.random.Generator, chances: Floats, change: str, design: Design) -> Floats | None:
    """Return chances after a change: the same, other problems', half, or moved by what an oracle finds in 80 %."""
    if change == "none":
        return chances
    if change == "other problems":
        return source.permuted(chances, axis=0) if len(chances) > 1 else chances
    if change == "half":
        return chances / 2
    room = 1 - float(chances.mean())
    share = 0.0
    for _ in range(20):
        after = chances + share * (1 - chances)
        noise = float((chances * (1 - chances) + after * (1 - after)).mean()) / design.answers
        variance = noise + float((share * (1 - chances)).var())
        share = min(1.0, REACH * float(np.sqrt(variance / design.problems)) / room)
    return chances + share * (1 - chances) if share < 0.9 else None


def measure_arms(simulations: int) -> Iterator[dict[str, Any]]:
    """Yield cells for arms of several seeds without a true difference: each run's log odds are shifted by its seed."""
    for design in (Design(30, 8), Design(100, 1), Design(500, 1)):
        for runs in ARMS:
            for seeds in SEEDS:
                for accuracy in (0.05, 0.5, 0.9):
                    source = np.random.default_rng([4, design.problems, *runs, int(100 * accuracy), int(10 * seeds)])
                    chances = draw_difficulties(source, (design.problems, simulations), accuracy, 2.0)
                    chances = np.clip(chances, 1e-6, 1 - 1e-6)
                    odds = np.log(chances / (1 - chances))
                    arms = [_draw_arm(source, odds, number, seeds, design.answers) for number in runs]
                    low, high, p_values = compute_arms_differences(*arms)
                    found = p_values < LEVEL
                    yield {
                        "kind": "arms",
                        "design": f"{design.name}, {runs[0]} and {runs[1]} seeds",
                        "even": False,
                        "accuracy": accuracy,
                        "seeds": seeds,
                        "change": "none",
                        "measure": "accuracy",
                        "coverage": float(((low <= 0) & (high >= 0)).mean()),
                        "found": float(found.mean()),
                        "contradictions": int((found != ((low > 0) | (high < 0))).sum()),
                    }


def _draw_arm(source: np.random.Generator, odds: Floats, runs: int, seeds: float, answers: int) -> Floats:
    moved = odds[None] + seeds * source.normal(size=(runs, 1, odds.shape[1]))
    return source.binomial(answers, 1 / (1 + np.exp(-moved))) / answers
