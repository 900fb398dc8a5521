"""Values of constants with a proven bound on their error, at any precision (ball arithmetic).

An enclosure is a value and the exponent of a power of two that its error does not exceed. Magnitudes are rounded up to
powers of two, so that the bounds cost nearly nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from qed.grading.bounds import MAX_EXPONENT, MAX_FACTORIAL, OverBoundError, UnreadableError, Work
from qed.grading.exact import UndefinedError, compute_rational
from qed.grading.numeric import get_context
from qed.grading.tree import Node

EXACT = -(1 << 40)  # the exponent of no error
ROOM = 3  # bits that the bounds of one operation give away
WIDE = -2  # a relative error above 2^-2 says nothing about the sign
BITS_PER_STEP = 2_000
MAX_GAMMA_BITS = 2_000


class IndeterminateError(Exception):
    """Raised when the error is too large for an operation: another branch or a division by zero is possible."""


class Enclosure(NamedTuple):
    """A real or complex value of mpmath, and the exponent of the bound on its error."""

    value: Any
    error: int


class Precision:
    """Arithmetic with a number of digits."""

    def __init__(self, digits: int, work: Work) -> None:
        self.arithmetic = get_context(digits)
        self.bits = int(self.arithmetic.prec)
        self.work = work
        self.cost = 1 + self.bits // BITS_PER_STEP
        self.depth = 0  # twice the bits of all numbers and of the magnitudes of all values

    def measure(self, value: Any) -> int:
        """Return the exponent of a power of two above the absolute value."""
        return EXACT if value == 0 else int(self.arithmetic.mag(value))

    def measure_below(self, ball: Enclosure) -> int:
        """Return the exponent of a power of two below the absolute value.

        Raises:
            IndeterminateError: the value may be zero.
        """
        low = self.measure(ball.value) - ROOM
        if low < ball.error - WIDE:
            raise IndeterminateError("a value may be zero")
        return low

    def enclose(self, value: Any, error: int) -> Enclosure:
        """Build the enclosure of a rounded result, whose operands contribute this error."""
        if not self.arithmetic.isfinite(value):
            raise UndefinedError("no finite value")
        if value == 0 and error < EXACT // 2:
            return Enclosure(self.arithmetic.mpf(0), EXACT)
        return Enclosure(value, max(error, self.measure(value) - self.bits) + ROOM)

    def is_real(self, ball: Enclosure) -> bool:
        """Return whether the value is a real number by its construction."""
        return not hasattr(ball.value, "_mpc_")

    def require_real(self, ball: Enclosure) -> Any:
        """Return the value of a real enclosure."""
        if not self.is_real(ball):
            raise IndeterminateError("a complex value")
        return ball.value


def enclose(node: Node, precision: Precision) -> Enclosure:
    """Compute an enclosure of the value of a constant expression.

    Raises:
        IndeterminateError: more precision is needed, or no precision is enough.
        UndefinedError: it has no value.
        UnreadableError: it contains a node without a numeric value.
        OverBoundError: it needs too much work.
    """
    precision.work.spend(precision.cost)
    ball = _enclose_node(node, precision)
    if node.kind == "number":
        precision.depth += 2 * (node.number.numerator.bit_length() + node.number.denominator.bit_length())
    elif ball.value != 0:
        precision.depth += 2 * abs(precision.measure(ball.value))
    return ball


def _enclose_node(node: Node, precision: Precision) -> Enclosure:
    kind = node.kind
    if kind == "number":
        return _enclose_number(node.number, precision)
    if kind == "constant":
        return _enclose_constant(node.name, precision)
    if kind == "turn":
        return _enclose_turn(node, precision)
    if kind == "power":
        return _enclose_power(node, precision)
    if kind == "function" and node.name in {"!", "!!", "\\binom", "\\gcd", "\\lcm"}:
        value = compute_rational(node, precision.work)
        if value is not None:
            return _enclose_number(value, precision)
    if kind not in RULES:
        raise UnreadableError(f"no value of a {kind}")
    return RULES[kind](node, [enclose(part, precision) for part in node.parts], precision)


def _enclose_number(number: Fraction, precision: Precision) -> Enclosure:
    value = precision.arithmetic.mpf(number.numerator)
    exact = number.numerator.bit_length() <= precision.bits
    if number.denominator == 1 and exact:
        return Enclosure(value, EXACT)
    return precision.enclose(value / number.denominator, EXACT)


def _enclose_constant(name: str, precision: Precision) -> Enclosure:
    arithmetic = precision.arithmetic
    if name == "i":
        return Enclosure(arithmetic.mpc(0, 1), EXACT)
    if name not in {"pi", "e"}:
        raise UndefinedError("infinity in an expression")
    return precision.enclose(+arithmetic.pi if name == "pi" else +arithmetic.e, EXACT)


def _enclose_turn(node: Node, precision: Precision) -> Enclosure:
    """Enclose the sine or the cosine of a rational multiple of π; exact where the value is 0, ±1 or ±1/2."""
    number = node.number % 2
    angle = precision.arithmetic.mpf(number.numerator) / number.denominator
    rule = precision.arithmetic.sinpi if node.name == "\\sin" else precision.arithmetic.cospi
    if number.denominator <= 2:
        return Enclosure(precision.arithmetic.mpf(round(float(rule(angle)))), EXACT)
    return precision.enclose(rule(angle), 2 - precision.bits)


def add_balls(balls: list[Enclosure], precision: Precision) -> Enclosure:
    """Add enclosures."""
    total = balls[0].value
    largest = max(precision.measure(ball.value) for ball in balls)
    for ball in balls[1:]:
        total = total + ball.value
        largest = max(largest, precision.measure(total))
    error = max(*(ball.error for ball in balls), largest - precision.bits) + len(balls).bit_length()
    return precision.enclose(total, error)


def _multiply(left: Enclosure, right: Enclosure, precision: Precision) -> Enclosure:
    if EXACT == left.error == right.error and 0 in (left.value, right.value):
        return Enclosure(precision.arithmetic.mpf(0), EXACT)
    one, two = precision.measure(left.value), precision.measure(right.value)
    error = max(one + right.error, two + left.error, left.error + right.error)
    return precision.enclose(left.value * right.value, max(error, EXACT) + 1)


def _invert(ball: Enclosure, precision: Precision) -> Enclosure:
    if ball.value == 0 and ball.error == EXACT:
        raise UndefinedError("division by zero")
    low = precision.measure_below(ball)
    return precision.enclose(1 / ball.value, ball.error - 2 * low)


def _multiply_all(balls: list[Enclosure], precision: Precision) -> Enclosure:
    result = balls[0]
    for ball in balls[1:]:
        result = _multiply(result, ball, precision)
    return result


def _enclose_power(node: Node, precision: Precision) -> Enclosure:
    base = enclose(node.parts[0], precision)
    try:
        exponent = compute_rational(node.parts[1], precision.work)
    except UndefinedError:
        exponent = None
    if exponent is not None:
        return raise_ball(base, exponent, precision)
    above = _multiply(enclose(node.parts[1], precision), _take_logarithm(base, precision), precision)
    return _exponentiate(above, precision)


def raise_ball(base: Enclosure, exponent: Fraction, precision: Precision) -> Enclosure:
    """Enclose a power with a rational exponent; an odd root of a negative number is real."""
    arithmetic, count, degree = precision.arithmetic, exponent.numerator, exponent.denominator
    size = abs(count).bit_length()
    if base.value == 0 and base.error == EXACT:
        if exponent <= 0:
            raise UndefinedError("zero to the power of zero")
        return base
    if exponent > 0 and base.error > precision.measure(base.value) - ROOM + WIDE:
        return _raise_near_zero(base, exponent, precision)
    if abs(count) * abs(precision.measure(base.value)) > 2 * MAX_EXPONENT * degree:
        raise OverBoundError("a power is too large")
    relative = base.error - precision.measure_below(base)
    if degree > 1 and not (precision.is_real(base) and (base.value > 0 or degree % 2)):
        logarithm = _take_logarithm(base, precision)
        return _exponentiate(_multiply(_enclose_number(exponent, precision), logarithm, precision), precision)
    spread = max(relative, ROOM - precision.bits) + size + 1
    if spread > WIDE:
        raise IndeterminateError("a power is too uncertain")
    value = base.value**count if degree == 1 else _take_real_root(base.value, degree, arithmetic) ** count
    return precision.enclose(value, precision.measure(value) + spread)


def _take_real_root(value: Any, degree: int, arithmetic: Any) -> Any:
    return arithmetic.root(value, degree) if value > 0 else -arithmetic.root(-value, degree)


def _raise_near_zero(base: Enclosure, exponent: Fraction, precision: Precision) -> Enclosure:
    bound = max(precision.measure(base.value), base.error) + 1
    if bound > 0:
        raise IndeterminateError("a value may be zero")
    return Enclosure(precision.arithmetic.mpf(0), math.ceil(bound * exponent) + 1)


def _exponentiate(above: Enclosure, precision: Precision) -> Enclosure:
    if abs(above.value) > MAX_EXPONENT:
        raise OverBoundError("a power is too large")
    if above.error > WIDE:
        raise IndeterminateError("an exponent is too uncertain")
    value = precision.arithmetic.exp(above.value)
    return precision.enclose(value, precision.measure(value) + above.error + 1)


def _take_logarithm(ball: Enclosure, precision: Precision) -> Enclosure:
    arithmetic, value = precision.arithmetic, ball.value
    if value == 0 and ball.error == EXACT:
        raise UndefinedError("the logarithm of zero")
    low = precision.measure_below(ball)
    if not precision.is_real(ball) and value.real < 0 and precision.measure(value.imag) - 1 <= ball.error:
        raise IndeterminateError("a value beside the cut of the logarithm")
    return precision.enclose(arithmetic.ln(value), ball.error - low + 1)


def _evaluate_function(node: Node, balls: list[Enclosure], precision: Precision) -> Enclosure:
    precision.work.spend(4 * precision.cost * precision.cost)
    name = node.name
    if name == "root":
        degree = compute_rational(node.parts[1], precision.work)
        if degree is None or degree == 0:
            raise UndefinedError("the degree of a root")
        return raise_ball(balls[0], 1 / degree, precision)
    if name in {"\\log", "\\ln"} and len(balls) <= 2:
        base = balls[1:] or ([_enclose_number(Fraction(10), precision)] if name == "\\log" else [])
        parts = [_take_logarithm(ball, precision) for ball in (balls[0], *base)]
        return _multiply(parts[0], _invert(parts[1], precision), precision) if base else parts[0]
    if name in {"\\max", "\\min"}:
        values = [precision.require_real(ball) for ball in balls]
        return Enclosure((max if name == "\\max" else min)(values), max(ball.error for ball in balls))
    if len(balls) != 1 or name not in ONE_ARGUMENT:
        raise UnreadableError(f"the function {name}")
    return ONE_ARGUMENT[name](balls[0], precision)


def _enclose_wave(name: str) -> Callable[[Enclosure, Precision], Enclosure]:
    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        if ball.error > 0 or (not precision.is_real(ball) and abs(ball.value.imag) > MAX_EXPONENT):
            raise IndeterminateError("an angle is too uncertain")
        slope = 0 if precision.is_real(ball) else int(2 * abs(ball.value.imag)) + 1
        value = getattr(precision.arithmetic, name)(ball.value)
        return precision.enclose(value, max(ball.error + slope, slope - precision.bits))

    return rule


def _enclose_arc(name: str) -> Callable[[Enclosure, Precision], Enclosure]:
    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        value = precision.require_real(ball)
        gap = 1 - abs(value)
        spread = max(ball.error, -precision.bits)
        if precision.measure(gap) <= spread + 2:  # at ±1, where the slope is infinite
            value = min(max(value, precision.arithmetic.mpf(-1)), precision.arithmetic.mpf(1))
            error = spread // 2 + 3
        elif gap < 0:
            raise UndefinedError("an arc of a value above one")
        else:
            error = spread + max(0, 2 - precision.measure(gap)) // 2 + 1
        return precision.enclose(getattr(precision.arithmetic, name)(value), error)

    return rule


def _enclose_step(name: str) -> Callable[[Enclosure, Precision], Enclosure]:
    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        value, round_off = precision.require_real(ball), getattr(precision.arithmetic, name)
        radius = precision.arithmetic.ldexp(1, max(ball.error, -precision.bits)) if ball.error > EXACT else 0
        if ball.error > 0 or round_off(value - radius) != round_off(value + radius):
            raise IndeterminateError("a step is too close")
        return Enclosure(round_off(value), EXACT)

    return rule


def _enclose_gamma(ball: Enclosure, precision: Precision) -> Enclosure:
    value = precision.require_real(ball)
    if not -0.75 < value < MAX_FACTORIAL or ball.error > -8 or precision.bits > MAX_GAMMA_BITS:
        raise IndeterminateError("a factorial of such a value")
    result = precision.arithmetic.gamma(value + 1)
    return precision.enclose(result, precision.measure(result) + max(ball.error, -precision.bits) + 5)


def _combine_exponentials(sign: int, divided: bool = False) -> Callable[[Enclosure, Precision], Enclosure]:
    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        up, down = (_exponentiate(Enclosure(way * ball.value, ball.error), precision) for way in (1, -1))
        half = _enclose_number(Fraction(1, 2), precision)
        total = add_balls([up, Enclosure(sign * down.value, down.error)], precision)
        below = _invert(add_balls([up, down], precision), precision) if divided else half
        return _multiply(total, below, precision)

    return rule


def _compose(outer: Callable[..., Enclosure], *inner: Callable[..., Enclosure]) -> Callable[..., Enclosure]:
    """Return the quotient of two rules, or the reciprocal of one."""

    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        below = _invert(outer(ball, precision), precision)
        return _multiply(inner[0](ball, precision), below, precision) if inner else below

    return rule


_SIN, _COS = _enclose_wave("sin"), _enclose_wave("cos")
ONE_ARGUMENT: dict[str, Callable[[Enclosure, Precision], Enclosure]] = {
    "\\sin": _SIN,
    "\\cos": _COS,
    "\\tan": _compose(_COS, _SIN),
    "\\cot": _compose(_SIN, _COS),
    "\\sec": _compose(_COS),
    "\\csc": _compose(_SIN),
    "\\arcsin": _enclose_arc("asin"),
    "\\arccos": _enclose_arc("acos"),
    "\\arctan": lambda ball, precision: precision.enclose(
        precision.arithmetic.atan(precision.require_real(ball)), ball.error
    ),
    "\\arccot": lambda ball, precision: precision.enclose(
        precision.arithmetic.pi / 2 - precision.arithmetic.atan(precision.require_real(ball)),
        max(ball.error, 2 - precision.bits),
    ),
    "\\sinh": _combine_exponentials(-1),
    "\\cosh": _combine_exponentials(1),
    "\\tanh": _combine_exponentials(-1, divided=True),
    "\\exp": _exponentiate,
    "\\cis": lambda ball, precision: _exponentiate(
        Enclosure(precision.arithmetic.mpc(0, 1) * ball.value, ball.error), precision
    ),
    "\\abs": lambda ball, precision: (
        Enclosure(abs(ball.value), ball.error)
        if precision.is_real(ball)
        else precision.enclose(abs(ball.value), ball.error)
    ),
    "\\cbrt": lambda ball, precision: raise_ball(ball, Fraction(1, 3), precision),
    "\\floor": _enclose_step("floor"),
    "\\ceil": _enclose_step("ceil"),
    "!": _enclose_gamma,
}
RULES: dict[str, Callable[[Node, list[Enclosure], Precision], Enclosure]] = {
    "add": lambda _, balls, precision: add_balls(balls, precision),
    "multiply": lambda _, balls, precision: _multiply_all(balls, precision),
    "divide": lambda _, balls, precision: _multiply(balls[0], _invert(balls[1], precision), precision),
    "ratio": lambda _, balls, precision: _multiply(balls[0], _invert(balls[1], precision), precision),
    "negate": lambda _, balls, __: Enclosure(-balls[0].value, balls[0].error),
    "degree": lambda _, balls, precision: _multiply_all(
        [balls[0], _enclose_constant("pi", precision), _enclose_number(Fraction(1, 180), precision)], precision
    ),
    "function": _evaluate_function,
}
