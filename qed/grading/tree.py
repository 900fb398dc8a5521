"""The typed value of an answer: one kind of node for numbers, expressions and everything built of them.

Scalars: number symbol constant add multiply divide power negate function apply plus_minus minus_plus degree.
Structures: sequence set list matrix row relation union unit ratio based text.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from qed.grading.bounds import MOST_SIGNS, OverBoundError, Work

SIGNS = {"plus_minus", "minus_plus"}


class Node(NamedTuple):
    """A kind, a name or an exact number, and what it is made of."""

    kind: str
    name: str = ""
    parts: tuple[Node, ...] = ()
    number: Fraction = Fraction(0)


def number(value: Fraction | int) -> Node:
    return Node("number", number=Fraction(value))


def negate(node: Node) -> Node:
    """Minus a node; a unit stays outermost, so that it is seen."""
    if node.kind == "unit":
        return node._replace(parts=(negate(node.parts[0]), *node.parts[1:]))
    if node.kind == "number":
        return number(-node.number)
    return Node("negate", parts=(node,))


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(here.parts)


def expand_signs(node: Node, work: Work) -> list[Node]:
    """What the ± in a node stand for: each for both signs, or all together where a ∓ ties them."""
    found = [inner.kind for inner in walk(node) if inner.kind in SIGNS]
    if not found:
        return [node]
    if len(found) > MOST_SIGNS:
        raise OverBoundError("too many ±")
    if "minus_plus" in found:
        return [_choose_sign(node, iter([sign] * len(found)), work) for sign in (1, -1)]
    count = 1 << len(found)
    choices = [[1 - 2 * (one >> place & 1) for place in range(len(found))] for one in range(count)]
    return [_choose_sign(node, iter(choice), work) for choice in choices]


def _choose_sign(node: Node, signs: Iterator[int], work: Work) -> Node:
    work.spend()
    if node.kind in SIGNS:
        sign = next(signs) * (1 if node.kind == "plus_minus" else -1)
        inner = _choose_sign(node.parts[0], signs, work)
        return inner if sign > 0 else negate(inner)
    if not node.parts:
        return node
    return node._replace(parts=tuple(_choose_sign(part, signs, work) for part in node.parts))
