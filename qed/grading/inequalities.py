"""Inequalities that are not solved, such as |x − 3| < 2, beside the sets that solve them.

A set solves an inequality when its ends are where both sides meet, and the inequality holds at points within the set
and at none outside of it. The points are fixed, so the verdict is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from qed.grading.bounds import Work
from qed.grading.numeric import Point
from qed.grading.regions import Region, compute_position
from qed.grading.scalars import is_scalar, list_names, try_evaluate
from qed.grading.tree import Node

SIGNS = {"<", "<=", ">", ">=", "!="}
Condition = tuple[Node, str]  # a difference, and its sign against zero
WITHIN = (1, 7, 29, 50, 71, 93, 99)  # percent of the way from one end to the next
BEYOND = (0.01, 0.31, 0.97, 2.03, 7.3, 31.7, 1009)  # behind the last end
NEAR = 1e-30
MOST_PARTS = 12


class At(Point):
    """A point at which the one name stands for a given value."""

    def __init__(self, value: Any, work: Work) -> None:
        super().__init__({}, 0, work)
        self.value = value

    def value_of(self, name: str) -> Any:
        return self.value


def solves(found: Region, inequality: Node, work: Work) -> bool:
    """Whether a set is the solution of an inequality, or of a chain of them, in one name."""
    names, signs = list_names(*inequality.parts), inequality.name.split()
    simple = inequality.kind == "relation" and set(signs) <= SIGNS and all(map(is_scalar, inequality.parts))
    if not simple or len(names) != 1 or next(iter(names)).endswith("()") or len(found.parts) > MOST_PARTS:
        return False
    if found.variable is not None and found.variable != Node("symbol", next(iter(names))):
        return False
    differences = [
        Node("add", parts=(left, Node("negate", parts=(right,)))) for left, right in pairwise(inequality.parts)
    ]
    conditions = list(zip(differences, signs, strict=True))
    return _ends_match(found, conditions, work) and _holds(found, conditions, work)


def _ends_match(found: Region, conditions: list[Condition], work: Work) -> bool:
    """Whether two sides meet at every end, and it belongs to the set exactly where they may be equal."""
    for part in found.parts:
        for end, closed in zip(part[:2], part.closed, strict=True):
            place = compute_position(end, work)
            if abs(place) != float("inf") and not any(_end_matches(place, closed, *one, work) for one in conditions):
                return False
    return True


def _end_matches(place: Any, closed: bool, difference: Node, sign: str, work: Work) -> bool:
    height = try_evaluate(difference, At(place, work))
    if height is None:  # a pole belongs to no solution
        return not closed
    return bool(abs(height) <= NEAR * max(1, abs(place))) and closed == (sign in {"<=", ">="})


def _holds(found: Region, conditions: list[Condition], work: Work) -> bool:
    """Whether the inequality is true at every point within the set, and false at every other."""
    spans = [(compute_position(part.low, work), compute_position(part.high, work)) for part in found.parts]
    ends = sorted({end for span in spans for end in span if abs(end) != float("inf")})
    if not ends:
        return False
    points = [ends[0] - step for step in BEYOND] + [ends[-1] + step for step in BEYOND]
    points += [low + (high - low) * share / 100 for low, high in pairwise(ends) for share in WITHIN]
    for point in points + [-point for point in points]:
        truths = [_is_true_at(point, *one, work) for one in conditions]
        if None in truths or all(truths) != any(low < point < high for low, high in spans):
            return False
    return True


def _is_true_at(point: Any, difference: Node, sign: str, work: Work) -> bool | None:
    """Whether one condition holds at a point; None where it has no real value."""
    height = try_evaluate(difference, At(point, work))
    if height is None or getattr(height, "imag", 0) != 0:
        return None
    if sign == "!=":
        return bool(height != 0)
    return bool(height < 0 if sign[0] == "<" else height > 0)
