"""Compare two expressions: exactly if both are rational, else at fixed points with many digits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qed.grading.bounds import OverBoundError, Work
from qed.grading.exact import UndefinedError, compute_rational
from qed.grading.numeric import (
    DIGITS,
    MORE_DIGITS,
    POINTS,
    POSITIVE_ROWS,
    SMOOTH_ROWS,
    Point,
    evaluate,
    get_context,
)
from qed.grading.proofs import are_distinguishable, are_same_constants
from qed.grading.tree import Node, make_number, walk

CLOSE_DIGITS = 38  # digits that must agree
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
MIN_POINTS = 2  # at which both sides must have a value
# Functions of several branches, which may agree near zero and differ elsewhere.
BRANCHED = {"\\floor", "\\ceil", "\\abs", "\\max", "\\min", "root"}


def is_scalar(node: Node) -> bool:
    """Return whether a node is a number or an expression, without structures in it."""
    return node.kind in SCALARS and (not node.parts or all(inner.kind in SCALARS for inner in walk(node)))


def list_names(*nodes: Node) -> dict[str, int]:
    """Return the free names with their indices in the rows of points, sorted, so that the order of the nodes does not
    matter."""
    names = set()
    for node in nodes:
        for inner in walk(node):
            if inner.kind == "symbol":
                names.add(inner.name)
            elif inner.kind == "apply":
                names.add(inner.name + "()")
    return {name: index for index, name in enumerate(sorted(names))}


def get_infinity_sign(node: Node) -> int:
    """Return 1 for ∞, −1 for −∞ and 0 for everything else."""
    if node.kind == "constant" and node.name == "infinity":
        return 1
    return -get_infinity_sign(node.parts[0]) if node.kind == "negate" and node.parts[0].kind == "constant" else 0


def are_same_scalar(left: Node, right: Node, work: Work) -> bool:
    """Return whether two expressions have the same value wherever both are defined."""
    if left == right:
        return True
    if get_infinity_sign(left) or get_infinity_sign(right):
        return get_infinity_sign(left) == get_infinity_sign(right)
    try:
        first, second = compute_rational(left, work), compute_rational(right, work)
    except UndefinedError:
        return False
    if first is not None and second is not None:
        return first == second
    names = list_names(left, right)
    if not names:
        return are_same_constants(left, right, work)
    count = 0
    for row in _list_rows(left, right):
        agrees = (_agree_at_point if row < SMOOTH_ROWS else _agree_far_out)(left, right, names, row, work)
        if agrees is False:
            return False
        count += agrees is True
    return count >= MIN_POINTS and _agree_at_high_precision(left, right, names, work)


def _agree_at_point(left: Node, right: Node, names: dict[str, int], row: int, work: Work) -> bool | None:
    """Return whether the values agree at one point; None if neither is defined there."""
    point = Point(names, row, work)
    first, second = try_evaluate(left, point), try_evaluate(right, point)
    if first is None or second is None:
        return None if first is second is None else False
    if row >= POSITIVE_ROWS and not has_imaginary_unit(left, right):
        # √(1/n) and 1/√n differ for negative n. Without an imaginary unit in the text, a complex value means no value.
        tolerance = point.arithmetic.mpf(10) ** -CLOSE_DIGITS
        if all(abs(point.arithmetic.im(value)) > abs(value) * tolerance for value in (first, second)):
            return None
    if are_close(first, second, point.arithmetic):
        return True
    return _is_rounding_error(left, right, names, row, work, first - second)


def _agree_at_high_precision(left: Node, right: Node, names: dict[str, int], work: Work) -> bool:
    """Return whether the values also agree beyond the usual digits: √(n² + 10⁻¹⁰⁰) is not n, nor x + 2⁻⁹⁹⁹ x."""
    if any(inner.kind == "apply" for node in (left, right) for inner in walk(node)):
        return True
    point = Point(names, 0, work)
    one, other = (_insert_values(node, point) for node in (left, right))
    try:
        first, second = compute_rational(one, work), compute_rational(other, work)
        if first is not None and second is not None:
            return first == second
        return not are_distinguishable(one, other, work)
    except (UndefinedError, ZeroDivisionError):
        return True


def _insert_values(node: Node, point: Point) -> Node:
    """Replace the names in an expression by their rational values at a point."""
    if node.kind == "symbol":
        return make_number(point.get_fraction(node.name))
    if not node.parts:
        return node
    return node._replace(parts=tuple(_insert_values(part, point) for part in node.parts))


def _list_rows(*nodes: Node) -> Iterator[int]:
    """Return the rows of points to compare at: all of them for functions of several branches."""
    yield from range(SMOOTH_ROWS)
    if any(_has_branches(inner) for node in nodes for inner in walk(node)):
        yield from range(SMOOTH_ROWS, len(POINTS))


def _has_branches(node: Node) -> bool:
    """Return whether a node is a function of several branches of a name: |x|, √x, x^(3/2), max(x, 1), arctan x."""
    if node.kind == "power":
        exponent = node.parts[1].parts[0] if node.parts[1].kind == "negate" else node.parts[1]
        branched = exponent.kind == "divide" or (exponent.kind == "number" and exponent.number.denominator > 1)
    else:
        branched = node.kind == "function" and (node.name in BRANCHED or node.name.startswith("\\arc"))
    return branched and bool(list_names(node))


def _agree_far_out(left: Node, right: Node, names: dict[str, int], row: int, _: Work) -> bool | None:
    """Return whether the values agree at a point far from zero; None if neither is defined there or one is not real."""
    first, second = (_evaluate_far_out(node, names, row) for node in (left, right))
    if first is None or second is None:
        return None if first is second is None else False
    if _is_complex(first) or _is_complex(second):
        return None
    arithmetic = get_context(MORE_DIGITS)
    return are_close(first, second, arithmetic) or bool(abs(first - second) < arithmetic.mpf(10) ** -DIGITS)


def _evaluate_far_out(node: Node, names: dict[str, int], row: int) -> Any:
    """Compute the value at a point far from zero, where powers are large; None if there is none, or it is too large.

    It has its own budget of steps, so that a long answer does not run out of them; the points near zero, which are more
    numerous, use the comparison's budget.
    """
    try:
        return try_evaluate(node, Point(names, row, Work(), MORE_DIGITS))
    except OverBoundError:
        return None


def _is_complex(value: Any) -> bool:
    return bool(abs(value.imag) > abs(value) * 10.0**-CLOSE_DIGITS)


def has_imaginary_unit(*nodes: Node) -> bool:
    """Return whether an expression contains the imaginary unit."""
    return any(inner.kind == "constant" and inner.name == "i" for node in nodes for inner in walk(node))


def try_evaluate(node: Node, point: Point) -> Any:
    """Compute the value at a point; None if there is no finite value."""
    try:
        value = evaluate(node, point)
    except (UndefinedError, ValueError, ArithmeticError):
        return None
    return value if point.arithmetic.isfinite(value) else None


def are_close(first: Any, second: Any, arithmetic: Any) -> bool:
    """Return whether two values agree to CLOSE_DIGITS digits."""
    scale = max(abs(first), abs(second))
    return bool(abs(first - second) <= scale * arithmetic.mpf(10) ** -CLOSE_DIGITS)


def _is_rounding_error(left: Node, right: Node, names: dict[str, int], row: int, work: Work, difference: Any) -> bool:
    """Return whether a tiny difference is a rounding error, which shrinks with more digits, and not a real one."""
    if abs(difference) > 1e-30:
        return False
    point = Point(names, row, work, MORE_DIGITS)
    first, second = try_evaluate(left, point), try_evaluate(right, point)
    if first is None or second is None:
        return False
    return bool(abs(first - second) <= abs(difference) * point.arithmetic.mpf(10) ** -CLOSE_DIGITS)


def compute_ratio(left: Node, right: Node, work: Work) -> Any:
    """Compute the ratio left / right if it is the same at all points; None if it is not, or is extreme."""
    names = list_names(left, right)
    if not names:
        return None
    ratios: list[Any] = []
    for row in _list_rows(left, right):
        far, point = row >= SMOOTH_ROWS, Point(names, row, work)
        first, second = (
            _evaluate_far_out(node, names, row) if far else try_evaluate(node, point) for node in (left, right)
        )
        if far and any(value is not None and _is_complex(value) for value in (first, second)):
            continue
        if first is None or second is None or second == 0 or first == 0:
            if (first is None) != (second is None) or (first == 0) != (second == 0):
                return None
            continue
        ratios.append(first / second)
        if not are_close(ratios[0], ratios[-1], point.arithmetic):
            return None
    unusable = len(ratios) < MIN_POINTS or abs(ratios[0]) > 1e20 or abs(ratios[0]) < 1e-20
    return None if unusable else ratios[0]
