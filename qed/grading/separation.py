"""A lower bound on the absolute value of an algebraic number that is not zero.

An expression of integers, sums, products, quotients, roots and roots of unity is a quotient of algebraic integers. If u
and l bound their conjugates, and D is the degree, then the value is zero or at least 1 / (u^(D-1) · l) (Burnikel,
Funke, Mehlhorn, Schirra, Schmitt: "A separation bound for real algebraic expressions", Algorithmica 55, 2009).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from qed.grading.tree import Node

MAX_DEGREE = 10_000
COMBINED = {"add", "multiply", "divide", "negate"}


class Conjugates(NamedTuple):
    """Bounds on the conjugates of numerator and denominator, as logarithms to base two."""

    above: float
    below: float


class Degree:
    """A bound on the degree of the field of an expression: the product over its different roots."""

    def __init__(self) -> None:
        self.roots: dict[Node, int] = {}
        self.order = 1

    def compute(self) -> int:
        """Return the bound on the degree."""
        totient = sum(math.gcd(self.order, one) == 1 for one in range(1, min(self.order, MAX_DEGREE) + 1))
        return totient * math.prod(self.roots.values())


def compute_separation(node: Node) -> int | None:
    """Compute a number b of bits such that the value is zero or at least 2^-b in size; None if it is not algebraic."""
    degree = Degree()
    bounds = _bound_conjugates(node, degree)
    if bounds is None or degree.order > MAX_DEGREE or (size := degree.compute()) > MAX_DEGREE:
        return None
    return math.ceil((size - 1) * bounds.above + bounds.below) + 8


def _measure(number: int) -> float:
    return math.log2(abs(number)) if number else 0.0


def _bound_conjugates(node: Node, degree: Degree) -> Conjugates | None:
    if node.kind == "number":
        return Conjugates(_measure(node.number.numerator), _measure(node.number.denominator))
    if node.kind == "constant" and node.name == "i":
        degree.order = math.lcm(degree.order, 4)
        return Conjugates(0.0, 0.0)
    if node.kind == "turn":  # twice the sine is an algebraic integer of absolute value two or less
        degree.order = math.lcm(degree.order, 4, 2 * node.number.denominator)
        return Conjugates(1.0, 1.0)
    if node.kind == "power" or (node.kind == "function" and node.name == "root"):
        return _bound_power(node, degree)
    return _bound_combination(node, degree) if node.kind in COMBINED else None


def _bound_combination(node: Node, degree: Degree) -> Conjugates | None:
    parts = []
    for part in node.parts:
        bounds = _bound_conjugates(part, degree)
        if bounds is None:
            return None
        parts.append(bounds)
    if node.kind == "add":
        return _add(parts)
    if node.kind == "divide":
        return Conjugates(parts[0].above + parts[1].below, parts[0].below + parts[1].above)
    return Conjugates(sum(part.above for part in parts), sum(part.below for part in parts))


def _add(parts: list[Conjugates]) -> Conjugates:
    below = sum(part.below for part in parts)
    largest = max(part.above - part.below for part in parts)
    return Conjugates(below + largest + math.log2(len(parts)), below)


def _bound_power(node: Node, degree: Degree) -> Conjugates | None:
    base, above = node.parts
    if above.kind != "number":
        return None
    exponent = above.number if node.kind == "power" else 1 / above.number if above.number else Fraction(0)
    if exponent == 0 or exponent.denominator > MAX_DEGREE:
        return None
    inner = _bound_conjugates(base, degree)
    if inner is None:
        return None
    if (count := exponent.denominator) > 1:
        degree.roots[Node("function", "root", (base, Node("number", number=Fraction(count))))] = count
        if inner.above >= inner.below:
            inner = Conjugates((inner.above + (count - 1) * inner.below) / count, inner.below)
        else:
            inner = Conjugates(inner.above, ((count - 1) * inner.above + inner.below) / count)
    times = abs(exponent.numerator)
    up, down = times * inner.above, times * inner.below
    return Conjugates(up, down) if exponent > 0 else Conjugates(down, up)
