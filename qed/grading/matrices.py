"""A number times a matrix is a matrix."""

from __future__ import annotations

from qed.grading.tree import Node


def multiplied(node: Node) -> Node:
    """The matrix that a product of one matrix with numbers is; every other node as it stands."""
    if node.kind == "negate":
        inner = multiplied(node.parts[0])
        return _each(inner, "negate", ()) if inner.kind == "matrix" else node
    if node.kind == "divide" and (inner := multiplied(node.parts[0])).kind == "matrix":
        return _each(inner, "divide", node.parts[1:])
    if node.kind == "multiply":
        matrices = [part for part in node.parts if part.kind == "matrix"]
        if len(matrices) == 1 and not matrices[0].name:
            factors = tuple(part for part in node.parts if part.kind != "matrix")
            return _each(matrices[0], "multiply", factors)
    return node


def _each(matrix: Node, kind: str, others: tuple[Node, ...]) -> Node:
    rows = [row._replace(parts=tuple(Node(kind, parts=(cell, *others)) for cell in row.parts)) for row in matrix.parts]
    return matrix._replace(parts=tuple(rows))
