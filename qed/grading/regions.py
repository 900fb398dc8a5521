"""Sets of real numbers: intervals, their unions, and the inequalities that describe them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from qed.grading.bounds import Work
from qed.grading.numeric import Point
from qed.grading.scalars import are_same_scalar, get_infinity_sign, is_scalar, list_names, try_evaluate
from qed.grading.tree import SETS, Node, expand_signs, make_number, negate
from qed.grading.vocabulary import INEQUALITIES

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!=", "in": "in", "=": "="}
INFINITY = Node("constant", "infinity")
BRACKETS = {"()", "[]", "(]", "[)"}


class Interval(NamedTuple):
    """An interval from low to high; `closed` says for each end whether it is included."""

    low: Node
    high: Node
    closed: tuple[bool, bool]


@dataclass
class Region:
    """Sorted, disjoint intervals, and the variable that they restrict, if it is named."""

    parts: list[Interval]
    variable: Node | None = None


ZERO = make_number(0)
LINE = Interval(negate(INFINITY), INFINITY, (False, False))
POSITIVE, NEGATIVE = Interval(ZERO, LINE.high, (False, False)), Interval(LINE.low, ZERO, (False, False))
NAMED_LINES = {"\\mathbb R": LINE, "\\mathbb R_\\geq 0": POSITIVE._replace(closed=(True, False))}
NAMED_LINES |= {f"\\mathbb R{mark}": POSITIVE for mark in (" +", "_+", "_> 0")}
NAMED_LINES |= {f"\\mathbb R{mark}": NEGATIVE for mark in (" -", "_-", "_< 0")}


def compute_position(node: Node, work: Work) -> Any:
    """Compute the real value of a constant; None for anything else."""
    if sign := get_infinity_sign(node):
        return sign * float("inf")
    if not is_scalar(node) or list_names(node):
        return None
    value = try_evaluate(node, Point({}, 0, work))
    if value is None or getattr(value, "imag", 0) != 0:
        return None
    return getattr(value, "real", value)


def build_region(node: Node, work: Work) -> Region | None:
    """Build the set that a node describes; None if it describes no set, or one whose ends are not constants."""
    work.spend()
    return KINDS[node.kind](node, work) if node.kind in KINDS else None


def _build_from_list(node: Node, work: Work) -> Region | None:
    """Combine a list of conditions: x > 2, x ≠ 3 is an intersection, x < 1, x > 3 a union.

    Sets in braces, and conditions that overlap without covering the line, are several answers: x ≥ 3, x ≥ 0.
    """
    if node.name == SETS or not all(part.kind in {"relation", "union", "sequence"} for part in node.parts):
        return None
    if node.name == "and" or (node.name == "," and any(part.name == "!=" for part in node.parts)):
        return _combine("and", node.parts, work)
    union = _combine("or", node.parts, work)
    if node.name == "," and union is not None and union.parts == [LINE]:  # x < 3, x > −1: an intersection is meant
        return _combine("and", node.parts, work)
    return None if node.name == "," and union is not None and _overlap(node.parts, union, work) else union


def _overlap(nodes: tuple[Node, ...], union: Region, work: Work) -> bool:
    """Return whether some of the sets of a union overlap or touch, so that it has fewer intervals than they have."""
    regions = [build_region(node, work) for node in nodes]
    return len(union.parts) < sum(len(region.parts) for region in regions if region is not None)


def _build_difference(node: Node, work: Work) -> Region | None:
    """Build a difference of sets, as in ℝ − {0}."""
    if len(node.parts) != 2 or node.parts[1].kind != "negate":
        return None
    return _combine("without", (node.parts[0], node.parts[1].parts[0]), work)


def _build_known_set(node: Node, _: Work) -> Region | None:
    """Build ℝ or ℝ⁺."""
    return Region([NAMED_LINES[node.name]]) if node.name in NAMED_LINES else None


def _build_interval(node: Node, work: Work) -> Region | None:
    if len(node.parts) != 2 or node.name not in BRACKETS:
        return None
    closed = (node.name[0] == "[", node.name[1] == "]")
    return _merge_in_order([Interval(node.parts[0], node.parts[1], closed)], None, work)


def _build_points(node: Node, work: Work) -> Region | None:
    return _merge_in_order([Interval(part, part, (True, True)) for part in node.parts], None, work)


def _build_from_inequality(node: Node, work: Work) -> Region | None:
    """Build the set of an inequality between a variable and one or two constants."""
    signs, sides = node.name.split(), node.parts
    if signs == ["in"]:
        inner = build_region(sides[1], work)
        return None if inner is None else Region(inner.parts, sides[0])
    if not set(signs) <= INEQUALITIES or len(sides) > 3 or (len(sides) == 3 and "!=" in signs):
        return None
    ends = [compute_position(side, work) for side in sides]
    if len(sides) == 3:
        return _build_between(sides, signs, ends, work)
    if ends[0] is not None:
        sides, signs, ends = sides[::-1], [FLIPPED[signs[0]]], ends[::-1]
    if signs == ["!="] and len(values := expand_signs(sides[1], work)) > 1:  # x ≠ ±2
        return _combine("and", tuple(node._replace(parts=(sides[0], value)) for value in values), work)
    if ends[0] is not None or ends[1] is None or not list_names(sides[0]):
        return None
    return Region(_build_half_line(signs[0], sides[1]), sides[0])


def _build_half_line(sign: str, bound: Node) -> list[Interval]:
    """Build the intervals on one side of a bound, or on both."""
    below, above = Interval(LINE.low, bound, (False, "=" in sign)), Interval(bound, LINE.high, ("=" in sign, False))
    if sign == "!=":
        return [below._replace(closed=(False, False)), above._replace(closed=(False, False))]
    return [below] if sign[0] == "<" else [above]


def _build_between(sides: tuple[Node, ...], signs: list[str], ends: list[Any], work: Work) -> Region | None:
    if ends[0] is None or ends[2] is None or ends[1] is not None or signs[0][0] != signs[1][0]:
        return None
    if signs[0][0] == ">":
        sides, signs = sides[::-1], [FLIPPED[sign] for sign in signs[::-1]]
    closed = ("=" in signs[0], "=" in signs[1])
    return _merge_in_order([Interval(sides[0], sides[2], closed)], sides[1], work)


def _combine(how: str, nodes: tuple[Node, ...], work: Work) -> Region | None:
    result: Region | None = None
    for node in nodes:
        region = build_region(node, work)
        if region is None:
            return None
        if result is None:
            result = region
            continue
        if not have_same_variable(result, region, work):
            return None
        parts = result.parts + region.parts
        if how == "and":
            parts = _intersect(result.parts, region.parts, work)
        elif how == "without":
            parts = _intersect(result.parts, _complement(region.parts), work)
        merged = _merge_in_order(parts, result.variable or region.variable, work)
        if merged is None:
            return None
        result = merged
    return result


def have_same_variable(left: Region, right: Region, work: Work) -> bool:
    """Return whether two regions restrict the same variable, or one of them names none."""
    if left.variable is None or right.variable is None:
        return True
    return (
        is_scalar(left.variable) and is_scalar(right.variable) and are_same_scalar(left.variable, right.variable, work)
    )


def _complement(parts: list[Interval]) -> list[Interval]:
    result, low, open_end = [], LINE.low, False
    for part in parts:
        result.append(Interval(low, part.low, (open_end, not part.closed[0])))
        low, open_end = part.high, not part.closed[1]
    return [*result, Interval(low, LINE.high, (open_end, False))]


def _intersect(left: list[Interval], right: list[Interval], work: Work) -> list[Interval]:
    result = []
    for one in left:
        for other in right:
            low = max((one.low, one.closed[0]), (other.low, other.closed[0]), key=lambda end: _sort_key_low(end, work))
            high = min(
                (one.high, one.closed[1]), (other.high, other.closed[1]), key=lambda end: _sort_key_high(end, work)
            )
            gap = compute_position(low[0], work) - compute_position(high[0], work)
            if gap < 0 or (gap == 0 and low[1] and high[1]):
                result.append(Interval(low[0], high[0], (low[1], high[1])))
    return result


def _sort_key_low(end: tuple[Node, bool], work: Work) -> tuple[Any, bool]:
    return compute_position(end[0], work), not end[1]


def _sort_key_high(end: tuple[Node, bool], work: Work) -> tuple[Any, bool]:
    return compute_position(end[0], work), end[1]


def _merge_in_order(parts: list[Interval], variable: Node | None, work: Work) -> Region | None:
    """Sort intervals and merge those that touch; None if an end is not a constant or an interval is empty."""
    placed = []
    for part in parts:
        low, high = compute_position(part.low, work), compute_position(part.high, work)
        if low is None or high is None or low > high or (low == high and part.closed != (True, True)):
            return None
        placed.append(((low, not part.closed[0]), part))
    placed.sort(key=lambda pair: pair[0])
    result: list[Interval] = []
    for _, part in placed:
        if result and _touch(result[-1], part, work):
            result[-1] = _merge_pair(result[-1], part, work)
        else:
            result.append(part)
    return Region(result, variable)


def _touch(left: Interval, right: Interval, work: Work) -> bool:
    end, start = compute_position(left.high, work), compute_position(right.low, work)
    return bool(start < end or (start == end and (left.closed[1] or right.closed[0])))


def _merge_pair(left: Interval, right: Interval, work: Work) -> Interval:
    end, other = compute_position(left.high, work), compute_position(right.high, work)
    if end > other:
        return left
    closed = right.closed[1] or (end == other and left.closed[1])
    return Interval(left.low, right.high, (left.closed[0], closed))


def are_same_region(left: Region, right: Region, work: Work) -> bool:
    """Return whether two regions have the same intervals and the same variable."""
    if len(left.parts) != len(right.parts) or not have_same_variable(left, right, work):
        return False
    return all(
        one.closed == other.closed
        and are_same_scalar(one.low, other.low, work)
        and are_same_scalar(one.high, other.high, work)
        for one, other in zip(left.parts, right.parts, strict=True)
    )


KINDS: dict[str, Callable[[Node, Work], Region | None]] = {
    "sequence": _build_interval,
    "set": _build_points,
    "union": lambda node, work: _combine(node.name, node.parts, work),
    "list": _build_from_list,
    "relation": _build_from_inequality,
    "add": _build_difference,
    "symbol": _build_known_set,
}
