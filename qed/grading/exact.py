"""Exact rational values; the size of every result is bounded before it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from qed.grading.bounds import MAX_BITS, MAX_FACTORIAL, OverBoundError, Work
from qed.grading.tree import Node

MAX_FALLING = 20  # of a binomial whose upper number is not an integer
BITS_PER_STEP = 2_000  # of arithmetic on long integers


class UndefinedError(Exception):
    """Raised when an expression has no value: a division by zero, or a logarithm of zero."""


def compute_rational(node: Node, work: Work) -> Fraction | None:
    """Compute the value as an exact fraction; None if it is not known to be rational."""
    work.spend()
    if node.kind == "number":
        return _check_size(node.number, work)
    if node.kind not in RULES:
        return None
    parts = []
    for part in node.parts:
        value = compute_rational(part, work)
        if value is None:
            return None
        parts.append(value)
    result = RULES[node.kind](node.name, parts)
    return None if result is None else _check_size(result, work)


def _check_size(value: Fraction, work: Work) -> Fraction:
    bits = count_bits(value)
    if bits > MAX_BITS:
        raise OverBoundError("an integer is too long")
    work.spend(bits // BITS_PER_STEP)
    return value


def count_bits(value: Fraction) -> int:
    """Return the number of bits of the numerator or the denominator, whichever has more."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _add(_: str, parts: list[Fraction]) -> Fraction:
    return sum(parts, Fraction(0))


def _multiply(_: str, parts: list[Fraction]) -> Fraction:
    if sum(map(count_bits, parts)) > 2 * MAX_BITS:
        raise OverBoundError("a product is too long")
    return math.prod(parts, start=Fraction(1))


def _divide(_: str, parts: list[Fraction]) -> Fraction:
    if parts[1] == 0:
        raise UndefinedError("division by zero")
    return parts[0] / parts[1]


def _compute_power(_: str, parts: list[Fraction]) -> Fraction | None:
    base, exponent = parts
    if exponent.denominator != 1:
        return _compute_root("", [base, Fraction(exponent.denominator)], exponent.numerator)
    return _raise_to_integer(base, exponent.numerator)


def _raise_to_integer(base: Fraction, exponent: int) -> Fraction:
    if base == 0 and exponent <= 0:
        raise UndefinedError("zero to the power of zero")
    if base in (0, 1):
        return base
    if base == -1:
        return Fraction(-1 if exponent % 2 else 1)
    if count_bits(base) * abs(exponent) > MAX_BITS:
        raise OverBoundError("a power is too long")
    return base**exponent


def _compute_root(_: str, parts: list[Fraction], exponent: int = 1) -> Fraction | None:
    """Compute a rational root such as √4, the real one if the degree is odd; None if the root is irrational."""
    radicand, degree = parts
    if degree.denominator != 1 or not 2 <= degree <= 20 or count_bits(radicand) > 4_000:
        return None
    odd = degree.numerator % 2
    if radicand < 0 and not odd:
        return None
    above = _compute_integer_root(abs(radicand.numerator), degree.numerator)
    below = _compute_integer_root(radicand.denominator, degree.numerator)
    if above is None or below is None:
        return None
    return _raise_to_integer(Fraction(above if radicand >= 0 else -above, below), exponent)


def _compute_integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        guess = math.isqrt(value)
    else:  # binary search: at most as many steps as bits
        low, high = 0, 1 << (value.bit_length() // degree + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
        guess = low
    return guess if guess**degree == value else None


def _compute_factorial(value: Fraction) -> Fraction | None:
    if value.denominator != 1 or value < 0:
        return None
    if value > MAX_FACTORIAL:
        raise OverBoundError("a factorial is too long")
    return Fraction(math.factorial(value.numerator))


def _compute_double_factorial(value: Fraction) -> Fraction | None:
    """Compute a double factorial: 7!! = 7·5·3·1."""
    if value.denominator != 1 or value < 0:
        return None
    if value > MAX_FACTORIAL:
        raise OverBoundError("a factorial is too long")
    return Fraction(math.prod(range(value.numerator, 0, -2)))


def _compute_binomial(parts: list[Fraction]) -> Fraction | None:
    above, below = parts
    if below.denominator == 1 < above.denominator and 0 <= below <= MAX_FALLING:  # C(x, 2) = x(x - 1)/2
        return math.prod(((above - step) / (step + 1) for step in range(below.numerator)), start=Fraction(1))
    if above.denominator != 1 or below.denominator != 1 or not 0 <= below <= above:
        return None
    if above > MAX_FACTORIAL:
        raise OverBoundError("a binomial is too long")
    return Fraction(math.comb(above.numerator, below.numerator))


def _combine_integers(rule: Callable[..., int], parts: list[Fraction]) -> Fraction | None:
    if any(part.denominator != 1 for part in parts):
        return None
    return Fraction(rule(*(part.numerator for part in parts)))


def _evaluate_function(name: str, parts: list[Fraction]) -> Fraction | None:
    if name == "root":
        return _compute_root(name, parts)
    if name in {"\\max", "\\min"}:
        return max(parts) if name == "\\max" else min(parts)
    if name in {"\\gcd", "\\lcm"}:
        return _combine_integers(math.gcd if name == "\\gcd" else math.lcm, parts)
    if name == "\\binom" and len(parts) == 2:
        return _compute_binomial(parts)
    if name in ONE_ARGUMENT and len(parts) == 1:
        return ONE_ARGUMENT[name](parts[0])
    return None


ONE_ARGUMENT: dict[str, Callable[[Fraction], Fraction | None]] = {
    "\\abs": abs,
    "\\floor": lambda value: Fraction(math.floor(value)),
    "\\ceil": lambda value: Fraction(math.ceil(value)),
    "!": _compute_factorial,
    "!!": _compute_double_factorial,
}
RULES: dict[str, Callable[[str, list[Fraction]], Fraction | None]] = {
    "add": _add,
    "multiply": _multiply,
    "divide": _divide,
    "negate": lambda _, parts: -parts[0],
    "power": _compute_power,
    "function": _evaluate_function,
    "ratio": lambda name, parts: _divide(name, parts) if len(parts) == 2 else None,
}
