"""Equality of two constants: proven, disproven or undecided.

Enclosures of increasing precision distinguish different values. Equality is proven for algebraic numbers by a
separation bound, and for others by an identity that holds for all values of their transcendental parts.
"""

from __future__ import annotations

from fractions import Fraction

from qed.grading.balls import Enclosure, IndeterminateError, Precision, add_balls
from qed.grading.bounds import OverBoundError, UnreadableError, Work
from qed.grading.closed_forms import Reducer
from qed.grading.enclosures import enclose
from qed.grading.exact import UndefinedError
from qed.grading.linear_terms import TWO, add, divide, split
from qed.grading.numeric import DIGITS
from qed.grading.separation import compute_separation
from qed.grading.tree import Node, make_number, negate, walk

MAX_BITS = 32_000  # of the precision
START_BITS = 200  # about the precision of the first comparison
JITTER = 1 << 20  # resolution of the values that replace atoms
# The signs of the offsets of several replacements: above or below the atom's own value.
SIDES = ((1, -1, -1, 1), (-1, -1, 1, 1), (-1, 1, -1, 1))
NO_ENCLOSURE = "cannot decide whether the values are equal: a part of one has no certain value"
NOT_DECIDED = "cannot decide whether the values are equal: they agree to {} digits or more"


def are_same_constants(left: Node, right: Node, work: Work) -> bool:
    """Return whether two expressions without names have the same value; a side without a value equals nothing.

    Raises:
        UnreadableError: neither equality nor difference could be proven.
        OverBoundError: a decision would need too high a precision.
    """
    precision = Precision(DIGITS, work)
    try:
        if apart := _are_apart(left, right, precision):
            return False
        difference = add(left, negate(right))
        if apart is False and not split(difference):  # the same terms in another order
            return True
        if (same := _decide_exactly(difference, work)) is not None:
            return same
        if apart := _separate(left, right, work):
            return False
    except (UndefinedError, ZeroDivisionError):
        return False
    if apart is None:  # final, because math-verify could not decide it either
        raise OverBoundError(NO_ENCLOSURE)
    raise UnreadableError(NOT_DECIDED.format(2 * DIGITS))


def _are_apart(left: Node, right: Node, precision: Precision) -> bool | None:
    """Return whether two enclosures exclude each other; None if more precision is needed to compute them."""
    try:
        first, second = enclose(left, precision), enclose(right, precision)
    except IndeterminateError:
        return None
    return _is_nonzero(add_balls([first, Enclosure(-second.value, second.error)], precision), precision)


def _is_nonzero(ball: Enclosure, precision: Precision) -> bool:
    return ball.value != 0 and precision.measure(ball.value) - 3 > ball.error


def _decide_exactly(difference: Node, work: Work) -> bool | None:
    """Return whether a difference is zero; None if no exact method can decide it."""
    reducer = Reducer(work, _is_proven_zero)
    try:
        reduced = reducer.reduce(difference)
        if has_symbols(reduced):
            return True if _is_proven_zero(reducer, reduced) else None
        return is_zero_algebraic(reduced, work)
    except (UnreadableError, IndeterminateError, OverBoundError):
        return None


def has_symbols(node: Node) -> bool:
    """Return whether a rewritten constant contains atoms."""
    return any(inner.kind == "symbol" for inner in walk(node))


def _is_proven_zero(reducer: Reducer, node: Node) -> bool:
    """Return whether a rewritten constant is zero for several values of its atoms, and so for all values."""
    if not has_symbols(node):
        return is_zero_algebraic(node, reducer.work)
    return all(is_zero_algebraic(substitute(node, reducer, side), reducer.work) for side in range(len(SIDES)))


def is_zero_algebraic(node: Node, work: Work) -> bool:
    """Return whether an algebraic number is zero.

    Raises:
        UnreadableError: it is not known to be algebraic.
        OverBoundError: its separation bound needs too many digits.
        IndeterminateError: a part of it is too close to a point without a value.
    """
    if node.kind == "number":
        return node.number == 0
    bits = compute_separation(node)
    if bits is None:
        raise UnreadableError("a value is not known to be algebraic")
    if bits > MAX_BITS:
        raise OverBoundError("the exact comparison needs too many digits")
    wanted = START_BITS
    while True:
        precision = Precision(max(DIGITS, int(wanted * 0.30103) + 8), work)
        ball = enclose(node, precision)
        if _is_nonzero(ball, precision):
            return False
        # The error admits zero, and any value other than zero would be larger than the error.
        if max(precision.measure(ball.value), ball.error) + 1 < -bits:
            return True
        if wanted > 2 * MAX_BITS:
            raise OverBoundError("the exact comparison needs too many digits")
        wanted = max(2 * wanted, min(bits + START_BITS // 2, 2 * MAX_BITS)) if wanted < bits else 2 * wanted


def substitute(node: Node, reducer: Reducer, side: int) -> Node:
    """Replace the atoms by rational numbers near their own values, different ones for each side.

    Sine and cosine of one angle stay on the unit circle.
    """
    values: dict[Node, Node] = {}
    for index, (atom, name) in enumerate(reducer.atoms.items()):
        offset = SIDES[side][index % 4] * (311 + 97 * index + 29 * side)
        if atom.kind == "function" and atom.name in {"\\sin", "\\cos"}:
            first = next(place for place, other in enumerate(reducer.atoms) if other.parts == atom.parts)
            values[name] = _replace_wave(atom, SIDES[side][first % 4] * (409 + 97 * first + 29 * side), reducer)
        else:
            values[name] = make_number(_find_neighbour(reducer.restore(atom), offset, reducer.work))
    return reducer.fold(_replace_symbols(node, values, reducer))


def _replace_symbols(node: Node, values: dict[Node, Node], reducer: Reducer) -> Node:
    reducer.work.spend()
    if node.kind == "symbol":
        return values[node]
    if not node.parts:
        return node
    return reducer.fold(node._replace(parts=tuple(_replace_symbols(part, values, reducer) for part in node.parts)))


def _replace_wave(atom: Node, offset: int, reducer: Reducer) -> Node:
    half = reducer.restore(divide(atom.parts[0], TWO))
    tangent = _find_neighbour(Node("function", "\\tan", (half,)), offset, reducer.work)
    above = 2 * tangent if atom.name == "\\sin" else 1 - tangent * tangent
    return make_number(above / (1 + tangent * tangent))


def _find_neighbour(node: Node, offset: int, work: Work) -> Fraction:
    """Return a rational number near the value of a constant."""
    precision = Precision(DIGITS, work)
    value = precision.require_real(enclose(node, precision))
    scale = Fraction(2) ** (precision.measure(value) if value else 0)
    return (
        (int(value * JITTER / precision.arithmetic.mpf(scale.numerator) * scale.denominator) + offset) * scale / JITTER
    )


def _separate(left: Node, right: Node, work: Work) -> bool | None:
    """Return whether enclosures of increasing precision distinguish two values; None if there are no enclosures.

    The precision grows up to a number of bits that the sizes of all intermediate values suggest.

    Raises:
        OverBoundError: that is too much.
    """
    digits = 2 * DIGITS
    while True:
        precision = Precision(digits, work)
        apart = _are_apart(left, right, precision)
        if apart or digits * 3.3 > precision.depth + START_BITS:
            return apart
        digits *= 2
        if digits * 3.3 > MAX_BITS:
            raise OverBoundError(NOT_DECIDED.format(digits // 2))


def are_distinguishable(left: Node, right: Node, work: Work) -> bool:
    """Return whether enclosures distinguish two constants, with as many digits as their sizes suggest."""
    return bool(_separate(left, right, work))
