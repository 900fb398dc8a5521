"""Sines, cosines and their inverses in closed form: exact at rational multiples of π and at inverses of known values.

Everything else is expanded by the addition formulas into sines and cosines of independent angles. A rule raises
UndefinedError where there is no value, and UnreadableError where it knows no closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from qed.grading.balls import Precision
from qed.grading.bounds import UnreadableError
from qed.grading.enclosures import enclose
from qed.grading.exact import UndefinedError
from qed.grading.gaussian import sum_arctangents
from qed.grading.linear_terms import IMAGINARY, ONE, PI, TWO, add, divide, find_fraction, multiply, split
from qed.grading.numeric import DIGITS
from qed.grading.tree import Node, make_number, negate

if TYPE_CHECKING:
    from qed.grading.closed_forms import Reducer

ZERO = make_number(0)
MAX_TURN = 1_000  # the denominator of a multiple of π
MAX_MULTIPLE = 12  # of an angle that is expanded
# The multiples of a known angle that are tried for another one.
RELATED = [Fraction(sign * size) for size in (Fraction(1), Fraction(2), Fraction(1, 2)) for sign in (1, -1)]


class Waves(NamedTuple):
    """The cosine and the sine of one angle."""

    cosine: Node
    sine: Node


def take_waves(reducer: Reducer, angle: Node) -> Waves:
    """Return cosine and sine of a rewritten angle."""
    waves = Waves(ONE, ZERO)
    pi = reducer.name_atom(PI)
    for term, count in split(angle).items():
        part = turn(count) if term == pi else _take_multiple(reducer, term, count)
        waves = part if waves == Waves(ONE, ZERO) else _add_angles(reducer, waves, part)
    return waves


def _add_angles(reducer: Reducer, one: Waves, two: Waves) -> Waves:
    product = _multiply_folded(reducer)
    return Waves(
        reducer.fold(add(product(one.cosine, two.cosine), negate(product(one.sine, two.sine)))),
        reducer.fold(add(product(one.sine, two.cosine), product(one.cosine, two.sine))),
    )


def _multiply_folded(reducer: Reducer) -> Callable[[Node, Node], Node]:
    def product(one: Node, two: Node) -> Node:
        if ZERO in (one, two):
            return ZERO
        return two if one == ONE else one if two == ONE else reducer.fold(multiply(one, two))

    return product


def _take_multiple(reducer: Reducer, term: Node, count: Fraction) -> Waves:
    """Return the waves of a multiple of one angle, from those of the angle or of its half."""
    arc = _read_arc(reducer, term)
    parts = count.denominator if arc is not None or count.denominator > 2 else 2
    if abs(count.numerator * parts // count.denominator) > MAX_MULTIPLE or (arc and parts > 2):
        parts, arc, term, count = 1, None, multiply(make_number(abs(count)), term), Fraction(1 if count > 0 else -1)
    if arc is not None:
        waves = arc if parts == 1 else _halve(arc)
    else:
        base = term if parts == 1 else multiply(make_number(Fraction(1, parts)), term)
        waves = Waves(*(reducer.name_atom(Node("function", name, (base,))) for name in ("\\cos", "\\sin")))
    times = int(abs(count) * parts)
    waves = _multiply_angle(waves, times)
    return waves if count > 0 else Waves(waves.cosine, negate(waves.sine))


def _read_arc(reducer: Reducer, term: Node) -> Waves | None:
    """Return the waves of an angle that is an arctangent."""
    value = reducer.find_atom(term, "\\arctan")
    if value is None:
        return None
    square = reducer.fold(Node("power", parts=(value, TWO)))
    root = reducer.fold(Node("function", "root", (reducer.fold(add(ONE, square)), TWO)))
    return Waves(reducer.fold(divide(ONE, root)), reducer.fold(divide(value, root)))


def _halve(waves: Waves) -> Waves:
    """Return the waves of half an angle between 0 and π/2."""
    halves = (divide(add(ONE, part), TWO) for part in (waves.cosine, negate(waves.cosine)))
    return Waves(*(Node("function", "root", (half, TWO)) for half in halves))


def _multiply_angle(waves: Waves, times: int) -> Waves:
    """Expand (cos x + i sin x)^n."""
    if times == 1:
        return waves
    sums: tuple[list[Node], list[Node]] = ([], [])
    for index in range(times + 1):
        powers = ((waves.cosine, times - index), (waves.sine, index))
        factors = [Node("power", parts=(base, make_number(count))) for base, count in powers if count]
        number = math.comb(times, index) * (-1 if index % 4 > 1 else 1)
        sums[index % 2].append(multiply(make_number(number), *factors))
    return Waves(*(add(*terms) for terms in sums))


def turn(count: Fraction) -> Waves:
    """Return cosine and sine of a rational multiple of π."""
    if count.denominator > MAX_TURN:
        raise UnreadableError("a very small fraction of π")
    return Waves(_turn_cosine(count % 2), _turn_cosine((count - Fraction(1, 2)) % 2))


def _turn_cosine(count: Fraction) -> Node:
    known = {Fraction(0): Fraction(1), Fraction(1, 3): Fraction(1, 2), Fraction(1, 2): Fraction(0)}
    known |= {1 - part: -cosine for part, cosine in known.items()}
    known |= {2 - part: cosine for part, cosine in known.items()}
    return make_number(known[count]) if count in known else Node("turn", "\\cos", number=count)


def take_arc(reducer: Reducer, name: str, value: Node) -> Node:
    """Rewrite an arcsine, arccosine or arctangent as a fraction of π, or with arctangents of positive numbers."""
    pi = reducer.name_atom(PI)
    if name == "\\arccos":
        return add(multiply(make_number(Fraction(1, 2)), pi), negate(take_arc(reducer, "\\arcsin", value)))
    count = find_fraction(_measure_arc(reducer, name, value) / Precision(DIGITS, reducer.work).arithmetic.pi, 60)
    if count is not None and _is_arc(reducer, name, value, turn(count)):
        return multiply(make_number(count), pi)
    size = reducer.measure(value)
    if size is None:
        raise UnreadableError("an inverse sine, cosine or tangent of a value near zero")
    if size < 0:
        return negate(take_arc(reducer, name, reducer.fold(negate(value))))
    if name == "\\arcsin":
        square = negate(reducer.fold(Node("power", parts=(value, TWO))))
        cosine = reducer.fold(Node("function", "root", (reducer.fold(add(ONE, square)), TWO)))
        value = reducer.fold(divide(value, cosine))
    if value.kind == "number":
        return sum_arctangents(value.number, reducer.name_atom)
    return _relate_arctangent(reducer, value)


def _measure_arc(reducer: Reducer, name: str, value: Node) -> Any:
    precision = Precision(DIGITS, reducer.work)
    return precision.require_real(enclose(Node("function", name, (reducer.restore(value),)), precision))


def _relate_arctangent(reducer: Reducer, value: Node) -> Node:
    """Return an arctangent as a multiple of a known one plus a fraction of π, or as an atom."""
    angle, pi = _measure_arc(reducer, "\\arctan", value), Precision(DIGITS, reducer.work).arithmetic.pi
    for atom, name in list(reducer.atoms.items()):
        if atom.name != "\\arctan":
            continue
        other = _measure_arc(reducer, "\\arctan", atom.parts[0])
        for factor in RELATED:
            rest = find_fraction((angle - other * factor.numerator / factor.denominator) / pi, 12)
            if rest is None:
                continue
            terms = [multiply(make_number(factor), name), multiply(make_number(rest), reducer.name_atom(PI))]
            related = add(*terms[: 1 + bool(rest)])
            if _is_arc(reducer, "\\arctan", value, take_waves(reducer, related)):
                return related
    return reducer.name_atom(Node("function", "\\arctan", (value,)))


def _is_arc(reducer: Reducer, name: str, value: Node, waves: Waves) -> bool:
    if name == "\\arctan":
        difference = add(reducer.fold(multiply(value, waves.cosine)), negate(waves.sine))
    else:
        difference = add(value, negate(waves.sine if name == "\\arcsin" else waves.cosine))
    return reducer.is_zero(reducer.fold(difference))


def _take_ratio(above: str, below: str) -> Callable[[Reducer, Node], Node]:
    def rule(reducer: Reducer, angle: Node) -> Node:
        waves = take_waves(reducer, angle)
        parts = {"\\sin": waves.sine, "\\cos": waves.cosine, "": ONE}
        if parts[below] == ZERO:
            raise UndefinedError("division by zero")
        return reducer.fold(divide(parts[above], parts[below]))

    return rule


def _take_cis(reducer: Reducer, angle: Node) -> Node:
    waves = take_waves(reducer, angle)
    return add(waves.cosine, multiply(IMAGINARY, waves.sine))


ANGLES: dict[str, Callable[..., Node]] = {
    "\\sin": lambda reducer, angle: take_waves(reducer, angle).sine,
    "\\cos": lambda reducer, angle: take_waves(reducer, angle).cosine,
    "\\tan": _take_ratio("\\sin", "\\cos"),
    "\\cot": _take_ratio("\\cos", "\\sin"),
    "\\sec": _take_ratio("", "\\cos"),
    "\\csc": _take_ratio("", "\\sin"),
    "\\cis": _take_cis,
    "\\arcsin": lambda reducer, value: take_arc(reducer, "\\arcsin", value),
    "\\arccos": lambda reducer, value: take_arc(reducer, "\\arccos", value),
    "\\arctan": lambda reducer, value: take_arc(reducer, "\\arctan", value),
}
