"""Equal equations in forms that are not multiples of each other: y = 12/x and xy = 12, f(x) = 2x and f(n) = 2n."""

from __future__ import annotations

from qed.grading.bounds import Work
from qed.grading.equivalent_forms import replace_name
from qed.grading.scalars import are_same_scalar, compute_ratio, list_names
from qed.grading.tree import Node, make_number, walk

MAX_DEGREE = 2  # of the factor that a solution is divided by
Sides = tuple[Node, ...]


def strip_argument(gold: Node, answer: Node) -> Node:
    """Rewrite y(x) = … as y = … if the gold does not write the argument."""
    name, called = gold.parts[0], answer.parts[0]
    if called.kind != "multiply" or len(called.parts) != 2 or called.parts[0] != name or name.kind != "symbol":
        return answer
    argument = called.parts[1]
    used = argument.kind == "symbol" and argument in walk(answer.parts[1])
    return answer._replace(parts=(name, answer.parts[1])) if used else answer


def rename_argument(gold: Node, answer: Node) -> Node:
    """Rewrite f(n) = 2n as f(x) = 2x, and a_k = 2k as a_n = 2n, if that is the gold's name for the argument."""
    name, called = _split_call(gold.parts[0]), _split_call(answer.parts[0])
    if name is None or called is None or name[0] != called[0] or name[1] in walk(answer.parts[1]):
        return answer
    return Node(answer.kind, answer.name, (gold.parts[0], replace_name(answer.parts[1], called[1], name[1])))


def _split_call(node: Node) -> tuple[str, Node] | None:
    """Return the name and the argument of f(x) or a_n, if the argument is a name."""
    if node.kind == "apply" and len(node.parts) == 1 and node.parts[0].kind == "symbol":
        return node.name, node.parts[0]
    name, mark, index = node.name.partition("_")
    if node.kind == "symbol" and mark and len(index) == 1 and index.isalpha():
        return name + mark, Node("symbol", index)
    return None


def have_same_chains(gold: Node, answer: Node) -> bool:
    """Return whether two lists of equations between names equate the same ones: a = b, b = c and a = c, b = c."""
    for node in (gold, answer):
        if node.kind != "list" or not all(map(_is_between_names, node.parts)):
            return False
    return _join_names(gold) == _join_names(answer)


def _is_between_names(node: Node) -> bool:
    return node.kind == "relation" and node.name == "=" and all(side.kind == "symbol" for side in node.parts)


def _join_names(node: Node) -> set[frozenset[Node]]:
    groups = set[frozenset[Node]]()
    for part in node.parts:
        touched = {group for group in groups if group & set(part.parts)}
        groups = (groups - touched) | {frozenset(part.parts).union(*touched)}
    return groups


def subtract(sides: Sides) -> Node:
    """Return the difference of both sides."""
    return Node("add", parts=(sides[0], Node("negate", parts=(sides[1],))))


def solves_equation(solution: Sides, equation: Sides, work: Work) -> bool:
    """Return whether y = f(x) is the solution of an equation that is linear in y, such as y = 12/x of xy = 12.

    The factor of y must be a power of a name, and the equation must not hold where the factor is zero, so that no
    solution is lost.
    """
    name, value = solution
    names = list_names(*equation, value)
    if name.kind != "symbol" or name.name in list_names(value) or not 1 < len(names) <= 4:
        return False
    left, right = (replace_name(side, name, value) for side in equation)
    if not are_same_scalar(left, right, work):
        return False
    zero, one, two = (replace_name(subtract(equation), name, make_number(number)) for number in range(3))
    factor = subtract((one, zero))
    if not are_same_scalar(factor, subtract((two, one)), work):
        return False
    return any(
        _is_power(factor, Node("symbol", other), work) and _holds_nowhere(one, Node("symbol", other), work)
        for other in names
        if other != name.name and not other.endswith("()")
    )


def _is_power(factor: Node, name: Node, work: Work) -> bool:
    powers = (Node("power", parts=(name, make_number(degree))) for degree in range(1, MAX_DEGREE + 1))
    return any(compute_ratio(factor, power, work) is not None for power in powers)


def _holds_nowhere(difference: Node, name: Node, work: Work) -> bool:
    """Return whether an equation cannot hold where a name is zero, given its difference without the other name."""
    value = replace_name(difference, name, make_number(0))
    return not list_names(value) and not are_same_scalar(value, make_number(0), work)
