"""Equivalent forms of an answer: a point with its label, a matrix in brackets, an engineer's imaginary unit."""

from __future__ import annotations

from qed.grading.scalars import has_imaginary_unit, list_names
from qed.grading.tree import Node, negate

PARAMETERS = {"t", "s", "u", "v", "k", "\\lambda", "\\mu"}
COORDINATES = {"x", "y", "z"}


def _list_labels(node: Node) -> list[str]:
    """Return the names before the values of a list, without their indices: x₁ and x₂ are two values of x."""
    if not all(part.kind == "relation" and part.name == "=" and part.parts[0].kind == "symbol" for part in node.parts):
        return []
    return [part.parts[0].name.partition("_")[0] for part in node.parts]


def is_named_beside_bare(one: Node, other: Node) -> bool:
    """Return whether one list has distinct names and the other has none; then they are compared in order."""
    if not one.kind == other.kind == "list" or bool(_list_labels(one)) == bool(_list_labels(other)):
        return False
    names = _list_labels(one) or _list_labels(other)
    return len(set(names)) == len(names)


def has_distinct_names(node: Node) -> bool:
    """Return whether every item of a list has a different name, as in x = 1 and y = 2."""
    names = _list_labels(node)
    return bool(names) and len(set(names)) == len(names)


def sort_by_names(items: Node, names: Node) -> Node:
    """Sort y = 2, x = 1 by the names in (x, y); return any other list unchanged."""
    if items.kind != "list" or not has_distinct_names(items) or len(items.parts) != len(names.parts):
        return items
    values = {item.parts[0]: item for item in items.parts}
    return (
        items._replace(parts=tuple(values[name] for name in names.parts)) if set(values) == set(names.parts) else items
    )


def rename_parameter(gold: Node, answer: Node) -> Node:
    """Rename the parameter of x = 1 + 2s, y = 3s to that of the gold, if both give values to the same names."""
    if not (gold.kind == answer.kind == "list" and has_distinct_names(gold) and has_distinct_names(answer)):
        return answer
    (old, *others), (new, *more) = (
        sorted(set(list_names(one)) - set(list_names(two))) or [""] for one, two in ((answer, gold), (gold, answer))
    )
    if others or more or not {old, new} <= PARAMETERS:
        return answer
    return replace_name(answer, Node("symbol", old), Node("symbol", new))


def strip_point_name(node: Node) -> Node:
    """Return the coordinates of a named point, A(1, 2), or of a negated one, −(1, 2)."""
    if node.kind == "apply" and len(node.name) == 1 and node.name.isupper() and len(node.parts) > 1:
        return Node("sequence", "()", node.parts)
    if node.kind == "negate" and node.parts[0].kind == "sequence" and node.parts[0].name == "()":
        return node.parts[0]._replace(parts=tuple(map(negate, node.parts[0].parts)))
    if node.kind == "multiply" and len(node.parts) == 2 and node.parts[1].kind == "sequence":
        label = node.parts[0]
        return node.parts[1] if label.kind == "symbol" and label.name[0].isupper() else node
    return node


def convert_to_matrix(node: Node) -> Node:
    """Convert [[1, 2], [3, 4]], or a column written as a binomial, to a matrix."""
    if node.kind == "sequence" and node.name == "[]" and all(part.name == "[]" for part in node.parts):
        return Node("matrix", parts=tuple(Node("row", parts=part.parts) for part in node.parts))
    if node.kind == "function" and node.name == "\\binom":
        return Node("matrix", parts=tuple(Node("row", parts=(part,)) for part in node.parts))
    return node


def unify_imaginary_unit(node: Node, other: Node) -> Node:
    """Replace j by i in 3 + 4j if the other side uses i."""
    if node.kind != "add" or "j" not in list_names(node) or "j" in list_names(other) or not has_imaginary_unit(other):
        return node
    return replace_name(node, Node("symbol", "j"), Node("constant", "i"))


def replace_name(node: Node, old: Node, new: Node) -> Node:
    """Replace every occurrence of a node by another."""
    return new if node == old else node._replace(parts=tuple(replace_name(part, old, new) for part in node.parts))


def is_combination(node: Node) -> bool:
    """Return whether a node combines several unknowns, as the m + n or 100a + b that a question asks for.

    x + 1 has one unknown, and x + y = 6 is the equation of a line.
    """
    if node.kind != "add" or not all(map(_is_term, node.parts)):
        return False
    names = set(list_names(node))
    return len(names) > 1 and not names & COORDINATES


def _is_term(node: Node) -> bool:
    """Return whether a node is a product of names and their powers, with or without a numeric factor."""
    if node.kind in {"negate", "power"}:
        return _is_term(node.parts[0]) and (node.kind == "negate" or node.parts[1].kind == "number")
    if node.kind == "multiply":
        return all(map(_is_term, node.parts[node.parts[0].kind == "number" :]))
    return node.kind in {"symbol", "apply"} or (node.kind == "function" and node.name == "\\abs")
