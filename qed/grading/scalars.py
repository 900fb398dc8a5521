"""Are two expressions the same: exactly where both are rational, else at fixed points with many digits."""

from __future__ import annotations

from typing import Any

from qed.grading.bounds import Work
from qed.grading.exact import UndefinedError, compute_rational
from qed.grading.numeric import MORE_DIGITS, POINTS, POSITIVE, SMOOTH, Point, evaluate
from qed.grading.tree import Node, walk

CLOSE = 38  # digits that must agree
SCALARS = {
    "number",
    "symbol",
    "constant",
    "add",
    "multiply",
    "divide",
    "power",
    "negate",
    "function",
    "apply",
    "degree",
}
MANY = 130  # digits that must agree in the end
FEWEST_POINTS = 2  # at which both sides must have a value


def is_scalar(node: Node) -> bool:
    """Whether a node is a number or an expression, with no structure in it."""
    return node.kind in SCALARS and all(inner.kind in SCALARS for inner in walk(node))


def list_names(*nodes: Node) -> dict[str, int]:
    """The free names, each with its place in the rows of points. Sorted, so that the order of the sides is nothing."""
    found = set()
    for node in nodes:
        for inner in walk(node):
            if inner.kind == "symbol":
                found.add(inner.name)
            elif inner.kind == "apply":
                found.add(inner.name + "()")
    return {name: place for place, name in enumerate(sorted(found))}


def sign_of_infinity(node: Node) -> int:
    """1 for ∞, −1 for −∞, 0 for everything else."""
    if node.kind == "constant" and node.name == "infinity":
        return 1
    return -sign_of_infinity(node.parts[0]) if node.kind == "negate" and node.parts[0].kind == "constant" else 0


def are_same_scalar(left: Node, right: Node, work: Work) -> bool:
    """Whether two expressions have the same value wherever both have one."""
    if left == right:
        return True
    if sign_of_infinity(left) or sign_of_infinity(right):
        return sign_of_infinity(left) == sign_of_infinity(right)
    try:
        first, second = compute_rational(left, work), compute_rational(right, work)
    except UndefinedError:
        return False
    if first is not None and second is not None:
        return first == second
    names = list_names(left, right)
    rows = range(len(POINTS) if _count_steps(left, right) else SMOOTH) if names else range(1)
    met = 0
    for row in rows:
        agreed = _agree(left, right, names, row, work)
        if agreed is False:
            return False
        met += agreed is True
    return met >= min(FEWEST_POINTS, len(rows)) and _agree_at_high_precision(left, right, names, work)


def _agree(left: Node, right: Node, names: dict[str, int], row: int, work: Work) -> bool | None:
    """Whether the values agree at one point; None where neither is defined there."""
    point = Point(names, row, work)
    first, second = try_evaluate(left, point), try_evaluate(right, point)
    if first is None or second is None:
        return None if first is second is None else False
    if row >= POSITIVE and not has_imaginary_unit(left, right):
        # Outside of the reals, √(1/n) and 1/√n part: what is meant there is that the expression has no value.
        outside = [
            abs(point.arithmetic.im(one)) > abs(one) * point.arithmetic.mpf(10) ** -CLOSE for one in (first, second)
        ]
        if all(outside):
            return None
    return are_close(first, second, point.arithmetic) or _vanishes(left, right, names, row, work, first - second)


def _agree_at_high_precision(left: Node, right: Node, names: dict[str, int], work: Work) -> bool:
    """Whether many more digits agree too: √(10¹⁰⁰ + 1) is not 10⁵⁰."""
    point = Point(names, 0, work, MORE_DIGITS)
    first, second = try_evaluate(left, point), try_evaluate(right, point)
    if first is None or second is None:
        return True
    scale = max(abs(first), abs(second), 1)
    return bool(abs(first - second) <= scale * point.arithmetic.mpf(10) ** -MANY)


def _count_steps(*nodes: Node) -> bool:
    return any(inner.name in {"\\floor", "\\ceil"} for node in nodes for inner in walk(node))


def has_imaginary_unit(*nodes: Node) -> bool:
    """Whether the imaginary unit is written anywhere."""
    return any(inner.kind == "constant" and inner.name == "i" for node in nodes for inner in walk(node))


def try_evaluate(node: Node, point: Point) -> Any:
    """The value, or None where there is none."""
    try:
        found = evaluate(node, point)
    except (UndefinedError, ZeroDivisionError, ValueError, OverflowError, ArithmeticError):
        return None
    return found if point.arithmetic.isfinite(found) else None


def are_close(first: Any, second: Any, arithmetic: Any) -> bool:
    scale = max(abs(first), abs(second))
    return bool(abs(first - second) <= scale * arithmetic.mpf(10) ** -CLOSE)


def _vanishes(left: Node, right: Node, names: dict[str, int], row: int, work: Work, difference: Any) -> bool:
    """Whether a tiny difference is rounding: with more digits it shrinks, and a true one stays."""
    if abs(difference) > 1e-30:
        return False
    point = Point(names, row, work, MORE_DIGITS)
    first, second = try_evaluate(left, point), try_evaluate(right, point)
    if first is None or second is None:
        return False
    return bool(abs(first - second) <= abs(difference) * point.arithmetic.mpf(10) ** -CLOSE)


def compute_ratio(left: Node, right: Node, work: Work) -> Any:
    """The constant by which the left is a multiple of the right at all points; None where there is none."""
    names = list_names(left, right)
    if not names:
        return None
    found: list[Any] = []
    for row in range(len(POINTS) if _count_steps(left, right) else SMOOTH):
        point = Point(names, row, work)
        first, second = try_evaluate(left, point), try_evaluate(right, point)
        if first is None or second is None or second == 0 or first == 0:
            if (first is None) != (second is None) or (first == 0) != (second == 0):
                return None
            continue
        found.append(first / second)
        if not are_close(found[0], found[-1], point.arithmetic):
            return None
    tiny = len(found) < FEWEST_POINTS or abs(found[0]) > 1e20 or abs(found[0]) < 1e-20
    return None if tiny else found[0]
