"""Piecewise functions: rows in any order, and a last row `otherwise` for the rest of the real line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qed.grading.bounds import Work
from qed.grading.inequalities import BEYOND, WITHIN, ValuePoint
from qed.grading.regions import LINE, Interval, Region, are_same_region, build_region, compute_position
from qed.grading.scalars import are_close, is_scalar, list_names, try_evaluate
from qed.grading.tree import Node

OTHERWISE = {"otherwise", "else", "if otherwise", "in other case", "in all other case", "for all other x", "elsewhere"}
REALS = Node("symbol", "\\mathbb R")
OPPOSITES = ({"of even", "of odd"}, {"of rational", "of irrational"})
Same = Callable[[Node, Node], bool]


def are_same_cases(gold: Node, answer: Node, are_same: Same, work: Work) -> bool:
    """Return whether two piecewise functions have the same rows of value and condition."""
    rows = [[_read_row(row) for row in node.parts] for node in (gold, answer)]
    if len(rows[0]) != len(rows[1]) or any(len(row) != 2 for row in (*rows[0], *rows[1])):
        return len(rows[0]) == len(rows[1]) and all(
            len(one) == len(other) and all(map(are_same, one, other)) for one, other in zip(*rows, strict=True)
        )
    unmatched = list(rows[1])
    rest: list[tuple[Node, ...]] = []
    for row in rows[0]:
        index = next((i for i, other in enumerate(unmatched) if all(map(are_same, row, other))), None)
        if index is None:
            rest.append(row)
        else:
            unmatched.pop(index)
    if not rest:
        return True
    if len(rest) != 1 or not are_same(rest[0][0], unmatched[0][0]):
        return False
    matched = [row[1] for row in rows[0] if row is not rest[0]]
    return any(
        _is_otherwise(one) and _is_rest(other, matched, work)
        for one, other in ((rest[0][1], unmatched[0][1]), (unmatched[0][1], rest[0][1]))
    )


def is_same_function(cases: Node, expression: Node, work: Work) -> bool:
    """Return whether a piecewise function equals one expression on the whole real line: |x|, or max(x, 0)."""
    rows = [_read_row(row) for row in cases.parts]
    if len(list_names(cases, expression)) != 1 or any(len(row) != 2 or not is_scalar(row[0]) for row in rows):
        return False
    conditions = [_read_equation(row[1]) for row in rows]
    if _is_otherwise(conditions[-1]):
        conditions[-1] = Node("union", "without", (REALS, Node("union", "or", tuple(conditions[:-1]))))
    regions = [build_region(condition, work) for condition in conditions]
    whole = build_region(Node("union", "or", tuple(conditions)), work)
    if whole is None or not are_same_region(Region(whole.parts), Region([LINE]), work):
        return False
    return all(
        region is not None and _agrees_on(region, row[0], expression, work)
        for region, row in zip(regions, rows, strict=True)
    )


def _agrees_on(region: Region, value: Node, expression: Node, work: Work) -> bool:
    """Return whether two expressions have the same values at fixed points of a region and at its closed ends."""
    for part in region.parts:
        for place in _list_places(part, work):
            point = ValuePoint(place, work)
            one, other = try_evaluate(value, point), try_evaluate(expression, point)
            if one is None or other is None or not are_close(one, other, point.arithmetic):
                return False
    return True


def _list_places(part: Interval, work: Work) -> list[Any]:
    low, high = compute_position(part.low, work), compute_position(part.high, work)
    ends = [end for end, closed in zip((low, high), part.closed, strict=True) if closed]
    if low == high:
        return ends
    if abs(low) < float("inf") and abs(high) < float("inf"):
        return [*ends, *(low + (high - low) * share / 100 for share in WITHIN)]
    start, sign = (low, 1) if abs(low) < float("inf") else (high, -1)
    return [*ends, *((start if abs(start) < float("inf") else 0) + sign * step for step in BEYOND)]


def _read_row(row: Node) -> tuple[Node, ...]:
    """Return the value and the condition of a row, which & or a comma separates."""
    if len(row.parts) == 1 and row.parts[0].kind == "list" and len(row.parts[0].parts) == 2:
        return row.parts[0].parts
    return row.parts


def _is_otherwise(node: Node) -> bool:
    return node.kind == "text" and node.name.rstrip("s") in OTHERWISE


def _is_rest(condition: Node, others: list[Node], work: Work) -> bool:
    """Return whether a condition holds exactly where none of the others holds."""
    if len(others) == 1 and condition.kind == others[0].kind == "unit":
        return {condition.name, others[0].name} in OPPOSITES and condition.parts[0] == others[0].parts[0]
    covered = Node("union", "or", tuple(map(_read_equation, others)))
    left = build_region(Node("union", "without", (REALS, covered)), work)
    right = build_region(_read_equation(condition), work)
    return left is not None and right is not None and are_same_region(left, right, work)


def _read_equation(condition: Node) -> Node:
    """Rewrite x = 0 as x ∈ {0}, which describes a set of reals."""
    if condition.kind == "relation" and condition.name == "=":
        return Node("relation", "in", (condition.parts[0], Node("set", parts=condition.parts[1:])))
    return condition
