"""Arctangents of rational numbers as sums of the arguments of Gaussian primes: arctan 1/2 + arctan 1/3 = π/4.

q + ip is a product of Gaussian primes and a power of i, so its argument is a sum of theirs, and the arguments of
Gaussian primes of different norms are independent over the rationals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from qed.grading.bounds import UnreadableError
from qed.grading.linear_terms import PI, add, multiply
from qed.grading.tree import Node, make_number

MAX_NORM = 10**8


def sum_arctangents(value: Fraction, name_atom: Callable[[Node], Node]) -> Node:
    """Rewrite the arctangent of a rational number; `name_atom` returns the symbol of a constant.

    Raises:
        UnreadableError: the number is too large to be factored.
    """
    real, imaginary = value.denominator, value.numerator
    if (norm := real * real + imaginary * imaginary) > MAX_NORM:
        raise UnreadableError("an arctangent of a large number")
    counts: dict[tuple[int, int], int] = {}
    for prime in _list_odd_primes(norm):
        first, second = _split_prime(prime)
        while (real * real + imaginary * imaginary) % prime == 0:
            sign = (
                1
                if (real * first + imaginary * second) % prime == (imaginary * first - real * second) % prime == 0
                else -1
            )
            factor = sign * second
            real, imaginary = (
                (real * first + imaginary * factor) // prime,
                (imaginary * first - real * factor) // prime,
            )
            counts[first, second] = counts.get((first, second), 0) + sign
    angle = sum(count * math.atan2(second, first) for (first, second), count in counts.items())
    eighths = round((math.atan(value) - angle) / (math.pi / 4))
    terms = [multiply(make_number(Fraction(eighths, 4)), name_atom(PI))] if eighths else []
    for (first, second), count in sorted(counts.items()):
        atom = name_atom(Node("function", "\\arctan", (make_number(Fraction(second, first)),)))
        terms.append(multiply(make_number(count), atom))
    return add(*terms) if terms else make_number(0)


def _list_odd_primes(number: int) -> list[int]:
    """Return the odd prime factors of a sum of two squares without a common factor; all of them are 1 modulo 4."""
    primes, divisor = [], 3
    while number % 2 == 0:
        number //= 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            primes.append(divisor)
            while number % divisor == 0:
                number //= divisor
        divisor += 2
    return [*primes, number] if number > 1 else primes


def _split_prime(prime: int) -> tuple[int, int]:
    """Return a > b > 0 whose squares add up to the prime."""
    for second in range(1, math.isqrt(prime // 2) + 1):
        first = math.isqrt(prime - second * second)
        if first * first + second * second == prime:
            return first, second
    raise UnreadableError("a number is not a sum of two squares")
