"""The typed value of an answer: one class of nodes for numbers, expressions and everything built from them.

Scalars: number symbol constant add multiply divide power negate function apply plus_minus minus_plus degree.
Structures: sequence set list matrix row relation union unit ratio based text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from qed.grading.bounds import MAX_SIGNS, OverBoundError, Work

SIGNS = {"plus_minus", "minus_plus"}
SETS = "sets"  # the name of a list of sets in braces, {x | x > 2}, {x | x < 5}, each of which is an answer


class Node(NamedTuple):
    """A kind, a name or an exact number, and the parts."""

    kind: str
    name: str = ""
    parts: tuple[Node, ...] = ()
    number: Fraction = Fraction(0)


def make_number(value: Fraction | int) -> Node:
    """Build the node of an exact number."""
    return Node("number", number=value if type(value) is Fraction else Fraction(value))


def negate(node: Node) -> Node:
    """Negate a node. A unit stays the outermost node, where comparisons expect it."""
    if node.kind == "unit":
        return node._replace(parts=(negate(node.parts[0]), *node.parts[1:]))
    if node.kind == "number":
        return make_number(-node.number)
    return Node("negate", parts=(node,))


def walk(node: Node) -> Sequence[Node]:
    """List a node and all nodes below it, each node before its parts."""
    if not node.parts:
        return (node,)
    found, stack = list[Node](), [node]
    while stack:
        current = stack.pop()
        found.append(current)
        if current.parts:
            stack.extend(current.parts)
    return found


def expand_signs(node: Node, work: Work) -> list[Node]:
    """Return the values that the ± in a node stand for: all combinations of signs, or two if a ∓ couples them."""
    if not node.parts:
        return [node]
    signs = [inner.kind for inner in walk(node) if inner.kind in SIGNS]
    if not signs:
        return [node]
    if len(signs) > MAX_SIGNS:
        raise OverBoundError("too many ±")
    if "minus_plus" in signs:
        return [_choose_sign(node, iter([sign] * len(signs)), work) for sign in (1, -1)]
    count = 1 << len(signs)
    choices = [[1 - 2 * (bits >> index & 1) for index in range(len(signs))] for bits in range(count)]
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
