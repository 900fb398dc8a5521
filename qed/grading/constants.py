"""Arbitrary constants of an integral or a differential equation: C, c, K, C₁, c₂.

x² + C equals x² + c, and C₁eˣ + C₂e⁻ˣ equals Ae⁻ˣ + Beˣ: the arbitrary constants may have other names than in the gold.
An answer without the gold's constant, or with one that the gold does not have, is a different answer.
"""

from __future__ import annotations

import re
from itertools import permutations

from qed.grading.bounds import Work
from qed.grading.equations import subtract
from qed.grading.scalars import are_same_scalar, is_scalar, list_names
from qed.grading.tree import Node, walk

FREE = re.compile(r"[Cc](?:_\d)?")  # names that the constants of a gold must have
ADDED = re.compile(r"(?:[CcKk]|const|constant)(?:_\d)?")  # in a sum
INDEXED = re.compile(r"[CcKk]_\d")
NAMES = re.compile(r"(?:[CcKkAaBDM]|const|constant)(?:_\d)?")
VARIABLES = {"x", "y", "z", "t", "u", "s", "r", "\\theta", "x()", "y()", "f()", "F()"}
MAX_CONSTANTS = 3
FRESH = "\\constant "  # no answer can write such a name


def are_same_with_constants(gold: Node, answer: Node, work: Work) -> bool:
    """Return whether two expressions are the same family, whatever the names of their arbitrary constants."""
    names = [] if gold.kind == "number" else _list_constants(gold)
    if not names or not is_scalar(answer):
        return False
    variables = set(list_names(gold)) - set(names)
    others = [name for name in list_names(answer) if name not in variables]
    if len(others) != len(names) or not all(map(NAMES.fullmatch, others)):
        return False
    if "A" in names and not all(map(INDEXED.fullmatch, others)):
        return False
    if len(names) == 1 and (term := _split_constant(gold, names[0])) is not None:
        other = _split_constant(answer, others[0])
        return (
            other is not None
            and ADDED.fullmatch(others[0]) is not None
            and _differ_by_constant(term, other, sorted(variables), work)
        )
    renamed = _rename(gold, dict(zip(names, map(_name_fresh, range(len(names))), strict=True)))
    for order in permutations(range(len(names))):
        candidate = _rename(answer, dict(zip(others, map(_name_fresh, order), strict=True)))
        if are_same_scalar(renamed, candidate, work):
            return True
    return False


def _list_constants(gold: Node) -> list[str]:
    """Return the names of the arbitrary constants of the gold; none if its other names are not variables."""
    names = list_names(gold)
    constants = [name for name in names if FREE.fullmatch(name)]
    if not 0 < len(constants) <= MAX_CONSTANTS or not {name for name in names if name not in constants} <= VARIABLES:
        constants = [name for name in names if name in {"A", "B"}]
        return constants if len(constants) == 2 and set(names) - set(constants) in ({"x"}, {"t"}) else []
    return constants if len(names) > len(constants) else []


def _name_fresh(index: int) -> str:
    return FRESH + str(index)


def _rename(node: Node, names: dict[str, str]) -> Node:
    if node.kind == "symbol" and node.name in names:
        return node._replace(name=names[node.name])
    return node._replace(parts=tuple(_rename(part, names) for part in node.parts)) if node.parts else node


def _split_constant(node: Node, name: str) -> Node | None:
    """Return a sum without its constant, which must be one term of it and occur nowhere else."""
    if node.kind != "add":
        return None
    rest = [
        part for part in node.parts if part not in (Node("symbol", name), Node("negate", parts=(Node("symbol", name),)))
    ]
    if len(rest) != len(node.parts) - 1 or any(inner.name == name for part in rest for inner in walk(part)):
        return None
    return Node("add", parts=tuple(rest))


def _differ_by_constant(gold: Node, answer: Node, variables: list[str], work: Work) -> bool:
    """Return whether two functions differ by a constant, so that f(x) − f(x′) is the same for both."""
    moved = {name: FRESH + name for name in variables if not name.endswith("()")}
    if not moved:
        return False
    one, other = (subtract((side, _rename(side, moved))) for side in (gold, answer))
    return are_same_scalar(one, other, work)


def rename_constant(gold: Node, answer: Node) -> Node:
    """Give the one arbitrary constant of an equation the name that it has in the gold: x² + y² = C."""
    names = _list_constants(gold)
    if len(names) != 1 or not gold.kind == answer.kind == "relation":
        return answer
    variables = set(list_names(gold)) - set(names)
    others = [name for name in list_names(answer) if name not in variables]
    renamable = len(others) == 1 and others != names and NAMES.fullmatch(others[0]) is not None
    return _rename(answer, {others[0]: names[0]}) if renamable else answer
