"""Values of expressions at fixed points, with sixty digits or more.

The points are constants and the precision of a context never changes, so a verdict is the same in every run and thread.
Roots of odd degree are real: the third root of −8 is −2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from mpmath import MPContext

from qed.grading.bounds import MAX_EXPONENT, MAX_FACTORIAL, OverBoundError, UnreadableError, Work
from qed.grading.exact import UndefinedError, compute_rational
from qed.grading.tree import Node

DIGITS = 60
MORE_DIGITS = 150
MAX_ANGLE = 10**40  # beyond it, reducing by 2π loses more digits than there are
# Numerators of the points, over 1009. The first three rows are positive, the next two have both signs. The last four
# are far from zero, for functions with steps or kinks: |x − 5| is 5 − x at all others. Three are beyond ±100.
POINTS = (
    (761, 1429, 2213, 547, 1871, 997, 2719, 1163, 2039, 683),
    (1627, 877, 601, 2467, 1283, 1999, 733, 2617, 947, 1753),
    (2371, 2003, 1361, 811, 2749, 641, 1579, 503, 2281, 1123),
    (-1187, 1669, -907, 2087, -2531, 1493, -709, 1949, -1319, 2633),
    (-2203, -1087, 1759, -1427, 593, -2311, 1901, -823, 2477, -619),
    (9187, 14431, 21379, 12781, 17539, 26417, 11467, 19013, 24671, 15331),
    (-118081, -109943, 113147, -104729, 121621, -107227, 115303, -112481, 106397, -119057),
    (111217, -121493, -105601, 117563, -108649, 114343, -119183, 107881, -113723, 122477),
    (-106087, 115849, -120371, 110479, 104297, -117041, -108923, 121019, 112657, -105227),
)
POSITIVE_ROWS = 3
SMOOTH_ROWS = 5  # enough for functions without steps and kinks
_contexts = threading.local()


def get_context(digits: int) -> Any:
    """Return this thread's arithmetic with at least that many digits, rounded up so that few contexts are built.

    Contexts are mutable, so threads do not share them.
    """
    step = 30 if digits <= 300 else 300  # a context takes 40 kB and a few milliseconds
    digits = -(-digits // step) * step
    context = getattr(_contexts, str(digits), None)
    if context is None:
        context = MPContext()
        context.dps = digits
        setattr(_contexts, str(digits), context)
    return context


class Point:
    """The value of each name, and the arithmetic to use."""

    def __init__(self, names: Mapping[str, int], row: int, work: Work, digits: int = DIGITS) -> None:
        self.names = names
        self.row = row
        self.work = work
        self.arithmetic = get_context(digits)

    def get_value(self, name: str) -> Any:
        """Return the value of a name."""
        value = self.get_fraction(name)
        return self.arithmetic.mpf(value.numerator) / value.denominator

    def get_fraction(self, name: str) -> Fraction:
        """Return the value of a name as a fraction; names beyond the length of the row get a different denominator."""
        row = POINTS[self.row]
        turn, index = divmod(self.names[name], len(row))
        return Fraction(row[index], 1009 + 10 * turn)


def evaluate(node: Node, point: Point) -> Any:
    """Compute the value of a scalar expression at a point.

    Raises:
        UndefinedError: it has no value there.
        UnreadableError: it contains a node without a numeric value.
        OverBoundError: it needs too much work.
    """
    work = point.work
    work.spend()
    kind, arithmetic = node.kind, point.arithmetic
    if kind == "number":
        return arithmetic.mpf(node.number.numerator) / node.number.denominator
    if kind == "symbol":
        return point.get_value(node.name)
    if kind == "constant":
        return _evaluate_constant(node.name, arithmetic)
    if kind == "power":
        return _evaluate_power(node, point)
    if kind not in RULES:
        raise UnreadableError(f"a {kind} has no value")
    return RULES[kind](node, [evaluate(part, point) for part in node.parts], point)


def _evaluate_constant(name: str, arithmetic: Any) -> Any:
    if name == "pi":
        return +arithmetic.pi
    if name == "e":
        return +arithmetic.e
    if name == "i":
        return arithmetic.mpc(0, 1)
    raise UndefinedError("infinity in an expression")


def _divide(_: Node, parts: list[Any], point: Point) -> Any:
    if parts[1] == 0:
        raise UndefinedError("division by zero")
    return parts[0] / parts[1]


def _multiply(_: Node, parts: list[Any], point: Point) -> Any:
    result = parts[0]
    for part in parts[1:]:
        result = result * part
    return result


def _apply_unknown_function(node: Node, parts: list[Any], point: Point) -> Any:
    """Evaluate an unknown function as a fixed function of its name, the point and all arguments."""
    seed = point.get_value(node.name + "()")
    arithmetic, result = point.arithmetic, seed
    for index, part in enumerate(parts):
        point.work.spend(3)
        result += (seed + index) * part + arithmetic.cos(_check_angle(part, arithmetic) * seed + index)
    return result


def _check_angle(angle: Any, arithmetic: Any) -> Any:
    if abs(angle) > MAX_ANGLE:
        raise OverBoundError("an angle is too large")
    return angle


def _evaluate_power(node: Node, point: Point) -> Any:
    base = evaluate(node.parts[0], point)
    try:
        exponent = compute_rational(node.parts[1], point.work)
    except UndefinedError:
        exponent = None
    if exponent is not None:
        return raise_to_rational(base, exponent, point)
    return raise_to_complex(base, evaluate(node.parts[1], point), point)


def raise_to_rational(base: Any, exponent: Fraction, point: Point) -> Any:
    """Compute a power with an exact rational exponent."""
    arithmetic = point.arithmetic
    if exponent.denominator == 1 and abs(exponent.numerator) < 1000:
        if base == 0 and exponent <= 0:
            raise UndefinedError("division by zero")
        return base**exponent.numerator
    real = arithmetic.im(base) == 0 and arithmetic.re(base) < 0
    if real and exponent.denominator % 2:
        result = raise_to_complex(-base, arithmetic.mpf(exponent.numerator) / exponent.denominator, point)
        return -result if exponent.numerator % 2 else result
    return raise_to_complex(base, arithmetic.mpf(exponent.numerator) / exponent.denominator, point)


def raise_to_complex(base: Any, exponent: Any, point: Point) -> Any:
    """Compute a power with a real or complex exponent."""
    arithmetic = point.arithmetic
    point.work.spend(5)
    if base == 0:
        if arithmetic.re(exponent) > 0:
            return base
        raise UndefinedError("zero to the power of zero")
    return _exponentiate(exponent * arithmetic.ln(base), arithmetic)


def _exponentiate(above: Any, arithmetic: Any) -> Any:
    if abs(above) > MAX_EXPONENT:
        raise OverBoundError("a power is too large")
    return arithmetic.exp(above)


def _evaluate_function(node: Node, parts: list[Any], point: Point) -> Any:
    point.work.spend(4)
    name, arithmetic = node.name, point.arithmetic
    if name == "root":
        degree = compute_rational(node.parts[1], point.work)
        if degree is None or degree == 0:
            raise UndefinedError("an invalid degree of a root")
        return raise_to_rational(parts[0], 1 / degree, point)
    if name in {"\\log", "\\ln"}:
        return _evaluate_logarithm(name, parts, arithmetic)
    if name in {"!", "\\binom", "\\floor", "\\ceil"}:
        return _evaluate_counting(name, parts, arithmetic)
    if name in {"\\max", "\\min"} and all(arithmetic.im(part) == 0 for part in parts):
        return max(map(arithmetic.re, parts)) if name == "\\max" else min(map(arithmetic.re, parts))
    if len(parts) != 1 or name not in ONE_ARGUMENT:
        raise UnreadableError(f"unknown function {name}")
    return ONE_ARGUMENT[name](arithmetic, _check_angle(parts[0], arithmetic))


def _evaluate_logarithm(name: str, parts: list[Any], arithmetic: Any) -> Any:
    """Evaluate a logarithm: ln is natural, and log has base 10 unless another base is given."""
    if any(part == 0 for part in parts) or len(parts) > 2:
        raise UndefinedError("the logarithm of zero")
    top = arithmetic.ln(parts[0])
    if len(parts) == 1:
        return top if name == "\\ln" else top / arithmetic.ln(10)
    bottom = arithmetic.ln(parts[1])
    if bottom == 0:
        raise UndefinedError("a logarithm of base one")
    return top / bottom


def _evaluate_counting(name: str, parts: list[Any], arithmetic: Any) -> Any:
    if any(arithmetic.im(part) != 0 or abs(part) > MAX_FACTORIAL for part in parts):
        raise UndefinedError(f"{name} of a large or complex value")
    parts = [arithmetic.re(part) for part in parts]
    if name == "\\floor":
        return arithmetic.floor(parts[0])
    if name == "\\ceil":
        return arithmetic.ceil(parts[0])
    if name == "\\binom":
        above, below = parts
        return arithmetic.gamma(above + 1) / arithmetic.gamma(below + 1) / arithmetic.gamma(above - below + 1)
    return arithmetic.gamma(parts[0] + 1)


def _build_reciprocal(name: str) -> Callable[[Any, Any], Any]:
    """Build the reciprocal of a function, such as the secant of the cosine."""

    def rule(arithmetic: Any, angle: Any) -> Any:
        below = ONE_ARGUMENT[name](arithmetic, angle)
        if below == 0:
            raise UndefinedError("division by zero")
        return 1 / below

    return rule


ONE_ARGUMENT: dict[str, Callable[[Any, Any], Any]] = {
    "\\sin": lambda arithmetic, angle: arithmetic.sin(angle),
    "\\cos": lambda arithmetic, angle: arithmetic.cos(angle),
    "\\tan": lambda arithmetic, angle: arithmetic.tan(angle),
    "\\cot": _build_reciprocal("\\tan"),
    "\\sec": _build_reciprocal("\\cos"),
    "\\csc": _build_reciprocal("\\sin"),
    "\\arcsin": lambda arithmetic, angle: arithmetic.asin(angle),
    "\\arccos": lambda arithmetic, angle: arithmetic.acos(angle),
    "\\arctan": lambda arithmetic, angle: arithmetic.atan(angle),
    "\\arccot": lambda arithmetic, angle: arithmetic.pi / 2 - arithmetic.atan(angle),
    "\\sinh": lambda arithmetic, angle: (_exponentiate(angle, arithmetic) - _exponentiate(-angle, arithmetic)) / 2,
    "\\cosh": lambda arithmetic, angle: (_exponentiate(angle, arithmetic) + _exponentiate(-angle, arithmetic)) / 2,
    "\\tanh": lambda arithmetic, angle: 1 - 2 / (_exponentiate(2 * angle, arithmetic) + 1),
    "\\exp": lambda arithmetic, angle: _exponentiate(angle, arithmetic),
    "\\cis": lambda arithmetic, angle: _exponentiate(arithmetic.mpc(0, 1) * angle, arithmetic),
    "\\abs": lambda arithmetic, angle: abs(angle),
    "\\cbrt": lambda arithmetic, angle: (
        arithmetic.root(angle, 3) if arithmetic.re(angle) > 0 else -arithmetic.root(-angle, 3)
    ),
}
RULES: dict[str, Callable[[Node, list[Any], Point], Any]] = {
    "add": lambda node, parts, point: sum(parts[1:], parts[0]),
    "multiply": _multiply,
    "divide": _divide,
    "ratio": _divide,
    "negate": lambda node, parts, point: -parts[0],
    "degree": lambda node, parts, point: parts[0] * point.arithmetic.pi / 180,
    "apply": _apply_unknown_function,
    "function": _evaluate_function,
}
