"""Families of values with an integer parameter: x = π/4 + kπ with k ∈ ℤ, 3k + 1, n ≡ 2 (mod 5).

Two families over ℤ are the same if they have the same values: each is a union of arithmetic progressions, which are
compared modulo a common period. Other families are the same if renaming the parameter makes them equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from qed.grading.bounds import OverBoundError, Work
from qed.grading.equivalent_forms import replace_name
from qed.grading.numeric import DIGITS, Point, get_context
from qed.grading.scalars import is_scalar, list_names, try_evaluate
from qed.grading.tree import Node, expand_signs, make_number

INTEGERS, NATURALS = "\\mathbb Z", "\\mathbb N"
PARAMETERS = {"k", "n", "m", "l", "j", "p", "q", "t", "r", "s"}
NUMBER = Node("symbol", "\\parameter")  # no answer can write this name
MAX_RESIDUES = 600  # of all progressions of one side
MAX_PERIODS = 60
NEAR = 30  # digits that must agree
Same = Callable[[Node, Node], bool]


@dataclass(frozen=True)
class Family:
    """Values of the unknown with NUMBER as their parameter, and the set of the parameter if it is declared."""

    values: tuple[Node, ...]
    unknown: Node | None
    domain: str


def describes_family(node: Node) -> bool:
    """Return whether a node declares an integer parameter or is a congruence."""
    return any(_is_declaration(part) or _ends_in_congruence(part) for part in _list_parts(node))


def are_same_families(gold: Node, answer: Node, are_same: Same, work: Work) -> bool | None:
    """Return whether two families have the same values; None if the nodes are not families that can be compared."""
    left, right = _read_family(gold, work), _read_family(answer, work)
    if left is None or right is None or (_is_congruence(gold) and _is_congruence(answer)):
        return None
    if left.unknown is not None and right.unknown is not None and left.unknown != right.unknown:
        return False
    if left.domain and right.domain and left.domain != right.domain:
        return False
    if INTEGERS in (left.domain, right.domain):
        one, other = _list_progressions(left.values, work), _list_progressions(right.values, work)
        if one is not None and other is not None:
            return _have_same_values(one, other)
    return are_same(_as_list(left.values), _as_list(right.values))


def _as_list(values: tuple[Node, ...]) -> Node:
    return values[0] if len(values) == 1 else Node("list", ",", values)


def _list_parts(node: Node) -> tuple[Node, ...]:
    return node.parts if node.kind == "list" else (node,)


def _is_declaration(node: Node) -> bool:
    return (
        node.kind == "relation"
        and node.name == "in"
        and node.parts[0].kind == "symbol"
        and node.parts[1].name in {INTEGERS, NATURALS}
    )


def _is_congruence(node: Node) -> bool:
    return all(part.kind == "congruence" or _ends_in_congruence(part) for part in _list_parts(node))


def _ends_in_congruence(node: Node) -> bool:
    return node.kind == "relation" and node.parts[-1].kind == "congruence"


def _read_family(node: Node, work: Work) -> Family | None:
    declared = [part for part in _list_parts(node) if _is_declaration(part)]
    others = [part for part in _list_parts(node) if not _is_declaration(part)]
    unknowns = {part.parts[0] for part in others if part.kind == "relation" and part.name == "="}
    if len(declared) > 1 or len(unknowns) > 1 or not others:
        return None
    values = [part.parts[1] if part.kind == "relation" and part.name == "=" else part for part in others]
    unknown = unknowns.pop() if unknowns else None
    if _is_congruence(node):
        return Family(tuple(map(_write_progression, values)), unknown, INTEGERS)
    values = [value for part in values for value in expand_signs(part, work)]
    names = set(list_names(*values))
    parameter = declared[0].parts[0].name if declared else names.pop() if len(names) == 1 else ""
    if not all(map(_is_value, values)) or (not declared and parameter not in PARAMETERS):
        return None
    if unknown is not None and (unknown.kind != "symbol" or unknown.name == parameter):
        return None
    values = [replace_name(value, Node("symbol", parameter), NUMBER) for value in values]
    return Family(tuple(values), unknown, declared[0].parts[1].name if declared else "")


def _is_value(node: Node) -> bool:
    return is_scalar(node) or (node.kind == "sequence" and all(map(is_scalar, node.parts)))


def _write_progression(node: Node) -> Node:
    """Write a congruence as a + m·NUMBER."""
    value, modulus = node.parts
    return Node("add", parts=(value, Node("multiply", parts=(modulus, NUMBER))))


Progression = tuple[Any, Any]  # start and step


def _list_progressions(values: tuple[Node, ...], work: Work) -> list[Progression] | None:
    """Return the progressions of all values; None if one is neither linear nor linear for even and odd numbers."""
    result = list[Progression]()
    for value in values:
        if set(list_names(value)) != {NUMBER.name} or not is_scalar(value):
            return None
        places = [try_evaluate(replace_name(value, NUMBER, make_number(n)), Point({}, 0, work)) for n in range(8)]
        if any(place is None or getattr(place, "imag", 0) != 0 for place in places):
            return None
        found = _find_progression(places)
        halves = [found] if found else [_find_progression(places[::2]), _find_progression(places[1::2])]
        if None in halves:
            return None
        result += [half for half in halves if half is not None]
    return result


def _find_progression(places: list[Any]) -> Progression | None:
    step = places[1] - places[0]
    if step == 0 or any(abs(two - one - step) > abs(step) * 10**-NEAR for one, two in pairwise(places)):
        return None
    return places[0], abs(step)


def _have_same_values(left: list[Progression], right: list[Progression]) -> bool:
    unit = left[0][1]
    ratios = [_find_ratio(step / unit) for _, step in (*left, *right)]
    if None in ratios:
        return False
    known = [ratio for ratio in ratios if ratio is not None]
    period = Fraction(
        math.lcm(*(ratio.numerator for ratio in known)), math.gcd(*(ratio.denominator for ratio in known))
    )
    if any(period / ratio > MAX_PERIODS for ratio in known):
        return False
    sides = [
        _list_residues([(start / unit, ratio) for (start, _), ratio in zip(side, part, strict=True)], period)
        for side, part in ((left, known[: len(left)]), (right, known[len(left) :]))
    ]
    return _are_same_residues(*sides)


def _find_ratio(value: Any) -> Fraction | None:
    """Return a simple fraction that equals the ratio of two steps."""
    ratio = Fraction(round(value * 5040), 5040)
    return ratio if ratio and abs(value * ratio.denominator - ratio.numerator) < 10**-NEAR * ratio.numerator else None


def _list_residues(progressions: list[tuple[Any, Fraction]], period: Fraction) -> list[Any]:
    """Return the values of the progressions within one period, sorted, each once.

    Raises:
        OverBoundError: there are too many.
    """
    if sum(int(period / step) for _, step in progressions) > MAX_RESIDUES:
        raise OverBoundError("too many values in a period")
    arithmetic, places = get_context(DIGITS), list[Any]()
    length, limit = arithmetic.mpf(period.numerator) / period.denominator, arithmetic.mpf(10) ** -NEAR
    for start, step in progressions:
        for index in range(int(period / step)):
            place = start + arithmetic.mpf(step.numerator) / step.denominator * index
            place -= arithmetic.floor(place / length) * length
            places.append(arithmetic.mpf(0) if abs(place - length) < limit else place)
    places.sort()
    return places[:1] + [two for one, two in pairwise(places) if two - one >= limit]


def _are_same_residues(left: list[Any], right: list[Any]) -> bool:
    limit = get_context(DIGITS).mpf(10) ** -NEAR
    return len(left) == len(right) and all(abs(one - other) < limit for one, other in zip(left, right, strict=True))
