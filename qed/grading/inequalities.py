"""Comparison of unsolved inequalities, such as |x − 3| < 2, with their solution sets.

A set solves an inequality if both sides are equal at its ends, and the inequality holds at all test points inside the
set and at none outside. The points are fixed, so the verdict is reproducible.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from qed.grading.bounds import OverBoundError, Work
from qed.grading.equations import subtract
from qed.grading.numeric import Point
from qed.grading.regions import Region, compute_position
from qed.grading.scalars import is_scalar, list_names, try_evaluate
from qed.grading.tree import Node
from qed.grading.vocabulary import INEQUALITIES

Condition = tuple[Node, str]  # a difference and its relation to zero
WITHIN = (1, 7, 29, 50, 71, 93, 99)  # percent of the way from one end to the next
BEYOND = (0.01, 0.31, 0.97, 2.03, 7.3, 31.7, 1009)  # distances beyond the first and last ends
FAR = (123457, 3e7, 1e12)  # more distances, used where the inequality has a value: 4 < 2x < 4000 ends far from 2
NEAR = 1e-30
MAX_PARTS = 12


class ValuePoint(Point):
    """A point at which the only variable has a given value."""

    def __init__(self, value: Any, work: Work) -> None:
        super().__init__({}, 0, work)
        self.value = value

    def get_value(self, name: str) -> Any:
        """Return the given value for any name."""
        return self.value


def solves(region: Region, inequality: Node, work: Work) -> bool:
    """Return whether a set is the solution of an inequality, or of a chain of them, in one variable."""
    names, signs = list_names(*inequality.parts), inequality.name.split()
    simple = inequality.kind == "relation" and set(signs) <= INEQUALITIES and all(map(is_scalar, inequality.parts))
    if not simple or len(names) != 1 or next(iter(names)).endswith("()") or len(region.parts) > MAX_PARTS:
        return False
    if region.variable is not None and region.variable != Node("symbol", next(iter(names))):
        return False
    conditions = list(zip(map(subtract, pairwise(inequality.parts)), signs, strict=True))
    return _ends_match(region, conditions, work) and _holds_on_region(region, conditions, work)


def _ends_match(region: Region, conditions: list[Condition], work: Work) -> bool:
    """Return whether at every end two sides are equal, and exactly the ends where equality is allowed are closed."""
    for part in region.parts:
        for end, closed in zip(part[:2], part.closed, strict=True):
            position = compute_position(end, work)
            if abs(position) == float("inf"):
                continue
            if not any(_end_matches(position, closed, *condition, work) for condition in conditions):
                return False
    return True


def _end_matches(position: Any, closed: bool, difference: Node, sign: str, work: Work) -> bool:
    value = try_evaluate(difference, ValuePoint(position, work))
    if value is None:  # a pole is part of no solution
        return not closed
    return bool(abs(value) <= NEAR * max(1, abs(position))) and closed == (sign in {"<=", ">="})


def _holds_on_region(region: Region, conditions: list[Condition], work: Work) -> bool:
    """Return whether the inequality holds at every test point inside the set, and at none outside."""
    spans = [(compute_position(part.low, work), compute_position(part.high, work)) for part in region.parts]
    ends = sorted({end for span in spans for end in span if abs(end) != float("inf")})
    if not ends:
        return False
    points = [ends[0] - step for step in BEYOND] + [ends[-1] + step for step in BEYOND]
    points += [low + (high - low) * share / 100 for low, high in pairwise(ends) for share in WITHIN]
    for point in points + [-point for point in points]:
        truths = [_is_true_at(point, *condition, work) for condition in conditions]
        if None in truths or all(truths) != any(low < point < high for low, high in spans):
            return False
    return all(_holds_far_out(point, spans, conditions) for step in FAR for point in (ends[0] - step, ends[-1] + step))


def _holds_far_out(point: Any, spans: list[tuple[Any, Any]], conditions: list[Condition]) -> bool:
    """Return whether the inequality agrees with the set at a point, or has no value there that can be computed."""
    try:
        truths = [_is_true_at(point, *condition, Work()) for condition in conditions]
    except OverBoundError:
        return True
    return None in truths or all(truths) == any(low < point < high for low, high in spans)


def _is_true_at(point: Any, difference: Node, sign: str, work: Work) -> bool | None:
    """Return whether one condition holds at a point; None if it has no real value there."""
    value = try_evaluate(difference, ValuePoint(point, work))
    if value is None or getattr(value, "imag", 0) != 0:
        return None
    if sign == "!=":
        return bool(value != 0)
    return bool(value < 0 if sign[0] == "<" else value > 0)
