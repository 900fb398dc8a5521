"""Rewritten constants as linear combinations of terms with rational coefficients."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from qed.grading.tree import Node, make_number

ONE, TWO = make_number(1), make_number(2)
PI, IMAGINARY = Node("constant", "pi"), Node("constant", "i")
Linear = dict[Node, Fraction]


def multiply(*parts: Node) -> Node:
    """Build a product."""
    return Node("multiply", parts=parts)


def add(*parts: Node) -> Node:
    """Build a sum."""
    return parts[0] if len(parts) == 1 else Node("add", parts=parts)


def divide(above: Node, below: Node) -> Node:
    """Build a quotient."""
    return Node("divide", parts=(above, below))


def split(node: Node) -> Linear:
    """Split a rewritten expression into terms with rational coefficients; the rational part belongs to ONE."""
    if node.kind == "number":
        return {ONE: node.number} if node.number else {}
    if node.kind == "negate":
        return scale(split(node.parts[0]), Fraction(-1))
    if node.kind == "add":
        total: Linear = {}
        for part in node.parts:
            for term, count in split(part).items():
                total[term] = total.get(term, Fraction(0)) + count
        return {term: count for term, count in total.items() if count}
    if node.kind == "divide":
        return _split_quotient(node)
    if node.kind == "multiply":
        return _split_product(node)
    return {node: Fraction(1)}


def _split_quotient(node: Node) -> Linear:
    """Split a quotient by a number, or by one term, term by term."""
    below = split(node.parts[1])
    if len(below) != 1:
        return {node: Fraction(1)}
    [(divisor, times)] = below.items()
    above = split(node.parts[0])
    if divisor == ONE:
        return scale(above, 1 / times)
    return {ONE if term == divisor else divide(term, divisor): count / times for term, count in above.items()}


def _split_product(node: Node) -> Linear:
    """Split a product, most often a number and one factor."""
    count, rest = Fraction(1), list[Node]()
    for part in node.parts:
        terms = split(part)
        if not terms:
            return {}
        if len(terms) == 1:
            [(term, times)] = terms.items()
            count *= times
            rest += [] if term == ONE else list(term.parts) if term.kind == "multiply" else [term]
        else:
            rest.append(part)
    count *= _cancel_factors(rest)
    if len(rest) == 1:
        return scale(split(rest[0]), count)
    return {multiply(*sorted(rest, key=repr)): count} if rest else {ONE: count}


def _cancel_factors(factors: list[Node]) -> Fraction:
    """Cancel b in (a/b)·b and square √2·√2 in a list of factors, and return the rational factor that results."""
    count = Fraction(1)
    for factor in list(factors):
        if factor.kind == "divide" and factor.parts[1] in factors and factor in factors:
            factors.remove(factor.parts[1])
            factors[factors.index(factor)] = factor.parts[0]
        square = factor.kind == "function" and factor.name == "root" and factor.parts[1] == TWO
        if square and factor.parts[0].kind == "number" and factors.count(factor) > 1:
            factors.remove(factor)
            factors.remove(factor)
            count *= factor.parts[0].number
    while factors.count(IMAGINARY) > 1:
        factors.remove(IMAGINARY)
        factors.remove(IMAGINARY)
        count = -count
    for factor in [factor for factor in factors if factor.kind == "number"]:
        factors.remove(factor)
        count *= factor.number
    return count


def scale(terms: Linear, factor: Fraction) -> Linear:
    """Multiply all coefficients by a factor."""
    return {term: count * factor for term, count in terms.items() if factor}


def find_fraction(value: Any, limit: int) -> Fraction | None:
    """Return the fraction with a small denominator that a value appears to equal; None if there is none."""
    if abs(value) > limit:
        return None
    guess = Fraction(float(value)).limit_denominator(limit)
    return guess if abs(value * guess.denominator - guess.numerator) < 1e-40 else None
