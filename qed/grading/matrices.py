"""Arithmetic on matrices: sums, products, powers, transposes, inverses and determinants, cell by cell.

Every result is an expression in the cells: no values are computed here, and the sizes are limited.
"""

from __future__ import annotations

from functools import reduce

from qed.grading.bounds import Work
from qed.grading.tree import Node, make_number

MAX_SIZE = 6  # rows or columns of a product
MAX_DETERMINANT_ROWS = 4  # rows: 24 products
MAX_POWER = 4
TRANSPOSED = {"T", "\\top", "t"}


def simplify(node: Node, work: Work) -> Node:
    """Reduce an expression with matrices to a matrix or a determinant; return any other node unchanged."""
    if node.kind not in RULES or not any(_is_matrix(part) or part.kind in RULES for part in node.parts):
        return _compute_determinant(node, work) if node.kind == "matrix" and node.name == "|" else node
    parts = tuple(simplify(part, work) for part in node.parts)
    if not any(map(_is_matrix, parts)):
        return node._replace(parts=parts)
    result = RULES[node.kind](node._replace(parts=parts), work)
    return node._replace(parts=parts) if result is None else result


def _is_matrix(node: Node) -> bool:
    return node.kind == "matrix"


def compute_shape(node: Node) -> tuple[int, int]:
    """Return the number of rows and the number of columns, 0 if the rows have different lengths."""
    widths = {len(row.parts) for row in node.parts}
    return len(node.parts), widths.pop() if len(widths) == 1 else 0


def _build_matrix(rows: list[list[Node]]) -> Node:
    return Node("matrix", parts=tuple(Node("row", parts=tuple(row)) for row in rows))


def _scale(matrix: Node, kind: str, others: tuple[Node, ...]) -> Node:
    return _build_matrix([[Node(kind, parts=(cell, *others)) for cell in row.parts] for row in matrix.parts])


def _negate(node: Node, _: Work) -> Node:
    return _scale(node.parts[0], "negate", ())


def _divide(node: Node, _: Work) -> Node | None:
    above, below = node.parts
    return _scale(above, "divide", (below,)) if _is_matrix(above) and not _is_matrix(below) else None


def _add(node: Node, work: Work) -> Node | None:
    shapes = {compute_shape(part) if _is_matrix(part) else (0, 0) for part in node.parts}
    if len(shapes) != 1 or 0 in min(shapes):
        return None
    height, width = shapes.pop()
    work.spend(height * width)
    cells = [[tuple(part.parts[i].parts[j] for part in node.parts) for j in range(width)] for i in range(height)]
    return _build_matrix([[Node("add", parts=cell) for cell in row] for row in cells])


def _multiply(node: Node, work: Work) -> Node | None:
    matrices = [part for part in node.parts if _is_matrix(part)]
    factors = tuple(part for part in node.parts if not _is_matrix(part))
    result: Node | None = matrices[0]
    for matrix in matrices[1:]:
        result = _multiply_pair(result, matrix, work) if result is not None else None
    return result if result is None or not factors else _scale(result, "multiply", factors)


def _multiply_pair(left: Node, right: Node, work: Work) -> Node | None:
    (height, inner), (other, width) = compute_shape(left), compute_shape(right)
    if inner != other or not 0 < max(height, inner, width) <= MAX_SIZE:
        return None
    work.spend(height * inner * width)
    columns = [[row.parts[index] for row in right.parts] for index in range(width)]
    return _build_matrix([[_dot_product(row.parts, tuple(column)) for column in columns] for row in left.parts])


def _dot_product(left: tuple[Node, ...], right: tuple[Node, ...]) -> Node:
    return Node("add", parts=tuple(Node("multiply", parts=pair) for pair in zip(left, right, strict=True)))


def _raise_to_power(node: Node, work: Work) -> Node | None:
    base, above = node.parts
    if above.kind == "symbol" and above.name in TRANSPOSED:
        height, width = compute_shape(base)
        return _build_matrix([[base.parts[i].parts[j] for i in range(height)] for j in range(width)])
    if above == make_number(-1):
        return _invert(base, work)
    if above.kind == "number" and above.number in range(2, MAX_POWER + 1):
        result: Node | None = base
        for _ in range(above.number.numerator - 1):
            result = _multiply_pair(result, base, work) if result is not None else None
        return result
    return None


def _invert(base: Node, work: Work) -> Node | None:
    """Invert a matrix of two rows: the adjugate over the determinant."""
    if compute_shape(base) != (2, 2):
        return None
    (a, b), (c, d) = (row.parts for row in base.parts)
    adjugate = _build_matrix([[d, Node("negate", parts=(b,))], [Node("negate", parts=(c,)), a]])
    return _scale(adjugate, "divide", (_compute_determinant(base, work),))


def _compute_determinant(node: Node, work: Work) -> Node:
    """Expand a determinant to a sum of products; return the node itself if it is too large or not square."""
    height, width = compute_shape(node)
    if height != width or not 0 < height <= MAX_DETERMINANT_ROWS:
        return node
    return _expand_first_row([row.parts for row in node.parts], work)


def _expand_first_row(rows: list[tuple[Node, ...]], work: Work) -> Node:
    """Expand a determinant along its first row."""
    work.spend()
    if len(rows) == 1:
        return rows[0][0]
    terms = []
    for index, cell in enumerate(rows[0]):
        minor = _expand_first_row([row[:index] + row[index + 1 :] for row in rows[1:]], work)
        term = Node("multiply", parts=(cell, minor))
        terms.append(Node("negate", parts=(term,)) if index % 2 else term)
    return reduce(lambda left, right: Node("add", parts=(left, right)), terms)


def _evaluate_function(node: Node, work: Work) -> Node | None:
    return _compute_determinant(node.parts[0], work) if node.name in {"\\det", "\\abs"} else None


RULES = {
    "negate": _negate,
    "divide": _divide,
    "add": _add,
    "multiply": _multiply,
    "power": _raise_to_power,
    "function": _evaluate_function,
}
