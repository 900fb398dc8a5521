"""Exact rational values, with the size of every result bounded before it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from qed.grading.bounds import LARGEST_FACTORIAL, MOST_BITS, OverBoundError, Work
from qed.grading.tree import Node

BITS_A_STEP = 2_000  # of arithmetic on long integers


class UndefinedError(Exception):
    """The expression has no value: a division by zero, or a logarithm of it."""


def compute_rational(node: Node, work: Work) -> Fraction | None:
    """The value as an exact fraction; None where it is not rational, or not seen to be."""
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
    if bits > MOST_BITS:
        raise OverBoundError("an integer is too long")
    work.spend(bits // BITS_A_STEP)
    return value


def count_bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _add(_: str, parts: list[Fraction]) -> Fraction:
    return sum(parts, Fraction(0))


def _multiply(_: str, parts: list[Fraction]) -> Fraction:
    if sum(map(count_bits, parts)) > 2 * MOST_BITS:
        raise OverBoundError("a product is too long")
    return math.prod(parts, start=Fraction(1))


def _divide(_: str, parts: list[Fraction]) -> Fraction:
    if parts[1] == 0:
        raise UndefinedError("division by zero")
    return parts[0] / parts[1]


def _power(_: str, parts: list[Fraction]) -> Fraction | None:
    base, exponent = parts
    if exponent.denominator != 1:
        return _root("", [base, Fraction(exponent.denominator)], exponent.numerator)
    return _whole_power(base, exponent.numerator)


def _whole_power(base: Fraction, exponent: int) -> Fraction:
    if base == 0 and exponent <= 0:
        raise UndefinedError("zero to the power of zero")
    if base in (0, 1):
        return base
    if base == -1:
        return Fraction(-1 if exponent % 2 else 1)
    if count_bits(base) * abs(exponent) > MOST_BITS:
        raise OverBoundError("a power is too long")
    return base**exponent


def _root(_: str, parts: list[Fraction], exponent: int = 1) -> Fraction | None:
    """A root that comes out, such as √4; the real one where the degree is odd."""
    radicand, degree = parts
    if degree.denominator != 1 or not 2 <= degree <= 20 or count_bits(radicand) > 4_000:
        return None
    odd = degree.numerator % 2
    if radicand < 0 and not odd:
        return None
    above = _whole_root(abs(radicand.numerator), degree.numerator)
    below = _whole_root(radicand.denominator, degree.numerator)
    if above is None or below is None:
        return None
    return _whole_power(Fraction(above if radicand >= 0 else -above, below), exponent)


def _whole_root(value: int, degree: int) -> int | None:
    if degree == 2:
        guess = math.isqrt(value)
    else:  # by halving: at most as many steps as bits
        low, high = 0, 1 << (value.bit_length() // degree + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
        guess = low
    return guess if guess**degree == value else None


def _factorial(value: Fraction) -> Fraction | None:
    if value.denominator != 1 or value < 0:
        return None
    if value > LARGEST_FACTORIAL:
        raise OverBoundError("a factorial is too long")
    return Fraction(math.factorial(value.numerator))


def _double_factorial(value: Fraction) -> Fraction | None:
    """7!! = 7·5·3·1."""
    if value.denominator != 1 or value < 0:
        return None
    if value > LARGEST_FACTORIAL:
        raise OverBoundError("a factorial is too long")
    return Fraction(math.prod(range(value.numerator, 0, -2)))


def _binomial(parts: list[Fraction]) -> Fraction | None:
    above, below = parts
    if above.denominator != 1 or below.denominator != 1 or not 0 <= below <= above:
        return None
    if above > LARGEST_FACTORIAL:
        raise OverBoundError("a binomial is too long")
    return Fraction(math.comb(above.numerator, below.numerator))


def _combine_integers(rule: Callable[..., int], parts: list[Fraction]) -> Fraction | None:
    if any(part.denominator != 1 for part in parts):
        return None
    return Fraction(rule(*(part.numerator for part in parts)))


def _evaluate_function(name: str, parts: list[Fraction]) -> Fraction | None:
    if name == "root":
        return _root(name, parts)
    if name in {"\\max", "\\min"}:
        return max(parts) if name == "\\max" else min(parts)
    if name in {"\\gcd", "\\lcm"}:
        return _combine_integers(math.gcd if name == "\\gcd" else math.lcm, parts)
    if name == "\\binom" and len(parts) == 2:
        return _binomial(parts)
    if name in ONE_ARGUMENT and len(parts) == 1:
        return ONE_ARGUMENT[name](parts[0])
    return None


ONE_ARGUMENT: dict[str, Callable[[Fraction], Fraction | None]] = {
    "\\abs": abs,
    "\\floor": lambda value: Fraction(math.floor(value)),
    "\\ceil": lambda value: Fraction(math.ceil(value)),
    "!": _factorial,
    "!!": _double_factorial,
}
RULES: dict[str, Callable[[str, list[Fraction]], Fraction | None]] = {
    "add": _add,
    "multiply": _multiply,
    "divide": _divide,
    "negate": lambda _, parts: -parts[0],
    "power": _power,
    "function": _evaluate_function,
    "ratio": lambda name, parts: _divide(name, parts) if len(parts) == 2 else None,
}
