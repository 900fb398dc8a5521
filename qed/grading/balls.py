"""Arithmetic with a proven bound on the error, at any precision (ball arithmetic).

An enclosure is a value and the exponent of a power of two that its error does not exceed. Magnitudes are rounded up to
powers of two, so the bounds cost almost nothing. An operation raises IndeterminateError if it needs more precision,
UndefinedError if there is no value, and OverBoundError if a power is too large.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

from qed.grading.bounds import MAX_EXPONENT, OverBoundError, Work
from qed.grading.exact import UndefinedError
from qed.grading.numeric import get_context

EXACT = -(1 << 40)  # the exponent that stands for no error
ROOM = 3  # bits that the bounds of one operation lose
WIDE = -2  # a relative error above 2^-2 says nothing about the sign
BITS_PER_STEP = 2_000


class IndeterminateError(Exception):
    """Raised when the error is too large for an operation, so that another branch or a division by zero is possible."""


class Enclosure(NamedTuple):
    """A real or complex value of mpmath, and the exponent of the bound on its error."""

    value: Any
    error: int


class Precision:
    """Arithmetic with a fixed number of digits."""

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
        """Build the enclosure of a rounded result whose operands contribute this error.

        Raises:
            UndefinedError: the result is not finite.
        """
        if not self.arithmetic.isfinite(value):
            raise UndefinedError("no finite value")
        if value == 0 and error < EXACT // 2:
            return Enclosure(self.arithmetic.mpf(0), EXACT)
        return Enclosure(value, max(error, self.measure(value) - self.bits) + ROOM)

    def is_real(self, ball: Enclosure) -> bool:
        """Return whether the value is a real number by its construction."""
        return not hasattr(ball.value, "_mpc_")

    def require_real(self, ball: Enclosure) -> Any:
        """Return the value of a real enclosure.

        Raises:
            IndeterminateError: the value is complex.
        """
        if not self.is_real(ball):
            raise IndeterminateError("a complex value")
        return ball.value


def enclose_number(number: Fraction, precision: Precision) -> Enclosure:
    """Enclose a rational number."""
    value = precision.arithmetic.mpf(number.numerator)
    exact = number.numerator.bit_length() <= precision.bits
    if number.denominator == 1 and exact:
        return Enclosure(value, EXACT)
    return precision.enclose(value / number.denominator, EXACT)


def add_balls(balls: list[Enclosure], precision: Precision) -> Enclosure:
    """Add enclosures."""
    total = balls[0].value
    largest = max(precision.measure(ball.value) for ball in balls)
    for ball in balls[1:]:
        total = total + ball.value
        largest = max(largest, precision.measure(total))
    error = max(*(ball.error for ball in balls), largest - precision.bits) + len(balls).bit_length()
    return precision.enclose(total, error)


def multiply_balls(left: Enclosure, right: Enclosure, precision: Precision) -> Enclosure:
    """Multiply two enclosures."""
    if EXACT == left.error == right.error and 0 in (left.value, right.value):
        return Enclosure(precision.arithmetic.mpf(0), EXACT)
    one, two = precision.measure(left.value), precision.measure(right.value)
    error = max(one + right.error, two + left.error, left.error + right.error)
    return precision.enclose(left.value * right.value, max(error, EXACT) + 1)


def invert_ball(ball: Enclosure, precision: Precision) -> Enclosure:
    """Enclose a reciprocal."""
    if ball.value == 0 and ball.error == EXACT:
        raise UndefinedError("division by zero")
    low = precision.measure_below(ball)
    return precision.enclose(1 / ball.value, ball.error - 2 * low)


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
        logarithm = take_logarithm(base, precision)
        return exponentiate_ball(multiply_balls(enclose_number(exponent, precision), logarithm, precision), precision)
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


def exponentiate_ball(above: Enclosure, precision: Precision) -> Enclosure:
    """Enclose the exponential function."""
    if abs(above.value) > MAX_EXPONENT:
        raise OverBoundError("a power is too large")
    if above.error > WIDE:
        raise IndeterminateError("an exponent is too uncertain")
    value = precision.arithmetic.exp(above.value)
    return precision.enclose(value, precision.measure(value) + above.error + 1)


def take_logarithm(ball: Enclosure, precision: Precision) -> Enclosure:
    """Enclose a natural logarithm; the branch cut is along the negative numbers."""
    arithmetic, value = precision.arithmetic, ball.value
    if value == 0 and ball.error == EXACT:
        raise UndefinedError("the logarithm of zero")
    low = precision.measure_below(ball)
    if not precision.is_real(ball) and value.real < 0 and precision.measure(value.imag) - 1 <= ball.error:
        raise IndeterminateError("a value near the branch cut of the logarithm")
    return precision.enclose(arithmetic.ln(value), ball.error - low + 1)
