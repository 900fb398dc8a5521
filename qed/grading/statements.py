"""Statements that an answer makes besides its value: chains such as x = 41 = 42, rounded values, names before a sign.

A statement that contradicts itself is wrong, whatever its last value.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from qed.grading.bounds import ContradictionError, OverBoundError, UnreadableError, Work
from qed.grading.exact import UndefinedError, compute_rational
from qed.grading.meanings import mean_the_same
from qed.grading.numeric import DIGITS, Point, get_context
from qed.grading.scalars import are_close, are_same_scalar, is_scalar, list_names, try_evaluate
from qed.grading.tree import Node, walk

ROUNDING = 50  # a rounded number differs from the exact one by less than one part in this many
MAX_PLACES = 20
# The kinds of nodes in a chain that is checked, besides fractions. No angles, whose degree sign may be missing, and no
# log without a base, which may be the natural one.
CONSTANTS = {"number", "constant", "add", "multiply", "divide", "power", "negate", "function"}
LETTERS = {"pi", "e"}
COMPUTED = {"add", "multiply", "divide", "power", "negate"}
# A text that denies, bounds or guesses what follows is not a name for it: not = 5, at least = 5.
DENYING = re.compile(
    r"\b(?:not|never|wrong|incorrect|than|guess|maybe|perhaps|probably|isn|at (?:least|most))\b|^(?:no|false)$"
    r"|(?<!least upper )(?<!greatest lower )\bbound\b|\bno (?!of\b|$)|\bopposite\b(?! (?:side|leg|angle))"
)
# The number of wrong answers and the probability of at least one have a value.
COUNTED = re.compile(r"(?:the )?(?:total )?(?:number|no|amount|sum|count|probability|chance) (?:of|that)\b")
# Names of an answer in words. Other words before a sign are themselves an answer: odd = even.
NAMES = re.compile(
    r"(?:.* )?(?:answer|result|solution|conclusion|choice|option|type|kind|parity|day|month|name|colou?r|shape)"
)
CHOICE = re.compile(r"[A-J]")


def check_chain(sides: list[Node]) -> None:
    """Refuse a chain of different numbers or functions; a rounded number may follow an exact one.

    Raises:
        ContradictionError: the sides differ.
    """
    # An e in front is more often a name than a number: e = c/a = 1/2.
    rest = sides[1:] if any(inner.name == "e" for inner in walk(sides[0])) else sides
    values = [value for side in rest if (value := _compute_constant(side)) is not None]
    exact = [value for value in values if isinstance(value, Fraction)]
    if any(not _is_near(values[0], value) for value in values):
        raise ContradictionError("a chain of different numbers")
    if len(exact) == len(values) and len(set(exact)) > 1 and all(value.denominator == 1 for value in exact):
        raise ContradictionError("a chain of different integers")
    irrational = [value for value in values if not isinstance(value, Fraction)]
    if not all(are_close(irrational[0], value, get_context(DIGITS)) for value in irrational):
        raise ContradictionError("a chain of different constants")
    _check_functions(sides)


def _check_functions(sides: list[Node]) -> None:
    """Refuse a chain with a different function between two that are the same: x(x + 1) = x² = x² + x."""
    if sides[0].kind not in COMPUTED or not list_names(sides[0]) or not all(map(is_scalar, sides)):
        return
    work = Work()  # for all comparisons together, because a chain may have hundreds of sides
    try:
        if not are_same_scalar(sides[0], sides[-1], work):
            return
        if all(are_same_scalar(sides[0], side, work) for side in sides[1:-1]):
            return
    except (UnreadableError, OverBoundError):
        return
    raise ContradictionError("a chain of different functions")


def check_rounding(exact: Node, rounded: list[Node]) -> None:
    """Refuse a plain number with a different number, or a number with words, after an approximate sign: 5 ≈ 6.

    An exact number is the answer even if its decimals are wrong, as in x = 1/3 ≈ 1.3.

    Raises:
        ContradictionError: the number after the sign is not near the one before it.
    """
    value = _compute_constant(exact)
    if value is None:
        return
    plain = (exact.parts[0] if exact.kind == "negate" else exact).kind == "number"
    for side in rounded:
        other = _compute_constant(side) if plain else None
        if side.kind == "text" or not (other is None or _is_near(value, other) or _rounds(value, other)):
            raise ContradictionError("a number is not near the one before it")


def _compute_constant(node: Node) -> Any:
    """Compute a Fraction, or the value of a real constant with sixty digits; None for anything else."""
    try:
        value = compute_rational(node, Work())
        if value is not None or not all(map(_is_constant, walk(node))):
            return value
        value = try_evaluate(node, Point({}, 0, Work()))
    except (UndefinedError, UnreadableError, OverBoundError):
        return None
    return None if value is None or getattr(value, "imag", 0) != 0 else getattr(value, "real", value)


def _is_constant(node: Node) -> bool:
    if node.kind == "constant":
        return node.name in LETTERS
    known = node.name in {"root", "\\ln"} or (node.name == "\\log" and len(node.parts) == 2)
    return node.kind in CONSTANTS and (node.kind != "function" or known)


def _convert(value: Any) -> Any:
    return get_context(DIGITS).mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _is_near(exact: Any, other: Any) -> bool:
    if not (isinstance(exact, Fraction) and isinstance(other, Fraction)):
        exact, other = _convert(exact), _convert(other)
    return bool(abs(other - exact) <= abs(exact) / ROUNDING)


def _rounds(exact: Any, other: Any) -> bool:
    """Return whether a decimal is a number rounded to its places, such as 0.3 for 1/3."""
    if not isinstance(other, Fraction):
        return False
    places = next((count for count in range(MAX_PLACES) if (other * 10**count).denominator == 1), 0)
    return places > 0 and bool(2 * abs(_convert(exact) - _convert(other)) * 10**places <= 1)


def is_denying(name: str) -> bool:
    """Return whether words before a sign deny, bound or guess, so that they are not a name."""
    return DENYING.search(name) is not None and COUNTED.match(name) is None


def is_other_answer(left: Node, right: Node) -> bool:
    """Return whether two sides are different answers: odd = even, A = B as choices."""
    if left.kind == right.kind == "text":
        return NAMES.fullmatch(left.name) is None and not mean_the_same(left.name, right.name)
    choices = left.kind == right.kind == "symbol" and all(CHOICE.fullmatch(side.name) for side in (left, right))
    return choices and left != right
