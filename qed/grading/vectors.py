"""Vectors in different notations: tuples with arithmetic, columns, ⟨1, 2⟩ and i + 2j."""

from __future__ import annotations

from qed.grading.bounds import Work
from qed.grading.matrices import TRANSPOSED, simplify
from qed.grading.scalars import is_scalar
from qed.grading.tree import Node, make_number, walk

PLAIN = {"i": 0, "j": 1, "k": 2}
DECORATED = {
    f"{mark} {name}": index
    for mark in ("\\hat", "\\vec", "\\widehat", "\\overline")
    for index, names in enumerate((("i", "\\i"), ("j", "\\jmath"), ("k",)))
    for name in names
}
UNITS = PLAIN | DECORATED
MARKS = DECORATED.keys() | {"j", "k"}  # i alone is a number
ARITHMETIC = {"add", "negate", "multiply", "divide", "power"}
Components = dict[int, Node]


def compute_vector(node: Node, work: Work) -> Node:
    """Reduce arithmetic on matrices, and on tuples as columns; return any other node unchanged."""
    if node.kind in ARITHMETIC and any(map(_is_tuple, walk(node))):
        result = simplify(_replace_tuples(node), work)
        return result if result.kind == "matrix" else node
    return simplify(node, work)


def _is_tuple(node: Node) -> bool:
    return (
        node.kind == "sequence"
        and node.name in {"()", "[]"}
        and len(node.parts) > 1
        and all(map(is_scalar, node.parts))
    )


def build_column(node: Node) -> Node:
    """Build a matrix of one column."""
    return Node("matrix", parts=tuple(Node("row", parts=(part,)) for part in node.parts))


def _replace_tuples(node: Node) -> Node:
    if node.kind == "power" and _is_tuple(node.parts[0]) and node.parts[1].name in TRANSPOSED:  # (1, 2)ᵀ is a column
        return build_column(node.parts[0])
    if _is_tuple(node) and node.name == "()":
        return build_column(node)
    return node._replace(parts=tuple(map(_replace_tuples, node.parts))) if node.kind in ARITHMETIC else node


def is_column(node: Node) -> bool:
    """Return whether a node is a matrix of one column with several rows."""
    return (
        node.kind == "matrix"
        and not node.name
        and len(node.parts) > 1
        and all(len(row.parts) == 1 for row in node.parts)
    )


def read_as_column(node: Node) -> Node:
    """Convert a tuple to a column; return any other node unchanged."""
    return build_column(node) if _is_tuple(node) else node


def unify_vectors(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Convert sums of the unit vectors i, j and k to tuples, if the other side is a vector in another notation."""
    if "number" in (gold.kind, answer.kind):
        return gold, answer
    length = next((len(node.parts) for node in (gold, answer) if _is_tuple(node) or is_column(node)), 0)
    marked = [any(inner.name in DECORATED for inner in walk(node)) for node in (gold, answer)]
    if not length and marked[0] == marked[1]:
        return gold, answer
    read = [_read_unit_vectors(node, length) for node in (gold, answer)]
    if length:
        return read[0] or gold, read[1] or answer
    return (read[0], read[1]) if read[0] and read[1] else (gold, answer)


def _read_unit_vectors(node: Node, length: int) -> Node | None:
    found = _find_components(node)
    if not found or (not length and not any(inner.name in MARKS for inner in walk(node))):
        return None
    size = max(found) + 1 if length else 3
    zero = make_number(0)
    return Node("sequence", "()", tuple(found.get(index, zero) for index in range(max(size, length))))


def _find_components(node: Node) -> Components | None:
    """Return the coefficient of each unit vector; None if a term has no unit vector or two of them."""
    if node.name in UNITS:
        return {UNITS[node.name]: make_number(1)}
    if node.kind == "add":
        return _add_components(node)
    if node.kind not in {"negate", "multiply", "divide"} or (node.kind == "divide" and _has_units(node.parts[1])):
        return None
    places = [index for index, part in enumerate(node.parts) if _has_units(part)]
    inner = _find_components(node.parts[places[0]]) if len(places) == 1 else None
    if inner is None:
        return None
    return {
        index: node._replace(parts=(*node.parts[: places[0]], part, *node.parts[places[0] + 1 :]))
        for index, part in inner.items()
    }


def _add_components(node: Node) -> Components | None:
    result: Components = {}
    for part in node.parts:
        found = _find_components(part)
        if found is None or found.keys() & result.keys():
            return None
        result |= found
    return result


def _has_units(node: Node) -> bool:
    return any(inner.name in UNITS for inner in walk(node))
