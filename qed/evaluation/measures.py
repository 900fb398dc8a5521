"""Compute a measure of each problem from its answers: accuracy, pass@k or maj@k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from qed.errors import UsageError
from qed.evaluation.estimators import compute_pass_at_k
from qed.evaluation.votes import Vote, vote_majority

Row = Mapping[str, Any]
ACCURACY = "accuracy"


def parse_measure(measure: str) -> tuple[str, int]:
    """Split a measure into its kind and its k, which is 0 for accuracy.

    Raises:
        UsageError: there is no such measure.
    """
    kind, _, number = measure.partition("@")
    if measure == ACCURACY:
        return ACCURACY, 0
    if kind not in ("pass", "maj") or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise UsageError(f"There is no measure {measure!r}: use accuracy, pass@K or maj@K, such as pass@8.")
    return kind, int(number)


def measure_problems(groups: Sequence[Sequence[Row]], measure: str = ACCURACY) -> list[float]:
    """Return a measure of each problem; each group holds the answers to one.

    Raises:
        UsageError: there is no such measure, or a problem has fewer than k answers.
    """
    kind, k = parse_measure(measure)
    if kind == ACCURACY:
        return [fmean(bool(row["correct"]) for row in group) for group in groups]
    short = sum(len(group) < k for group in groups)
    if short:
        raise UsageError(
            f"{measure} needs {k} answers to each problem, and {short:,} of {len(groups):,} problems have fewer; the "
            f"largest k here is {min(map(len, groups))}."
        )
    if kind == "pass":
        return [compute_pass_at_k(len(group), sum(bool(row["correct"]) for row in group), k) for group in groups]
    return [vote_majority(read_votes(group), k) for group in groups]


def read_votes(group: Sequence[Row]) -> list[Vote]:
    """Return the final answers to a problem as votes."""
    return [Vote(row.get("extracted"), bool(row["correct"])) for row in group]
