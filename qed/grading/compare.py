"""Compare two typed values as answers, with one rule for each kind of value, the most specific kinds first."""

from __future__ import annotations

from collections.abc import Callable

from qed.grading.bounds import MAX_ITEMS, OverBoundError, UnreadableError, Work
from qed.grading.closeness import are_near
from qed.grading.constants import are_same_with_constants
from qed.grading.equations import have_same_chains
from qed.grading.equivalent_forms import (
    convert_to_matrix,
    has_distinct_names,
    is_named_beside_bare,
    rename_parameter,
    sort_by_names,
    strip_point_name,
    unify_imaginary_unit,
)
from qed.grading.exact import compute_rational
from qed.grading.families import are_same_families, describes_family
from qed.grading.meanings import mean_the_same, read_set_in_words
from qed.grading.piecewise import are_same_cases, is_same_function
from qed.grading.policy import Policy
from qed.grading.quantities import are_same_in_base, are_same_quantity, are_same_ratio
from qed.grading.relations import Relations
from qed.grading.scalars import are_same_scalar, is_scalar
from qed.grading.tree import Node, expand_signs
from qed.grading.vectors import compute_vector, is_column, read_as_column, unify_vectors
from qed.grading.vocabulary import INEQUALITIES

COMPUTED = {"negate", "add", "multiply", "divide", "power", "function", "apply"}


class Comparison(Relations):
    """One comparison, with its policy and its remaining work."""

    def __init__(self, policy: Policy, work: Work) -> None:
        self.policy = policy
        self.work = work
        self.near = False  # whether some value was accepted without being equal
        self.structures: dict[str, Callable[[Node, Node], bool]] = {
            "sequence": self.are_same_cells,
            "matrix": self.are_same_matrices,
            "row": self.are_same_cells,
            "congruence": self.are_congruent,
            "text": lambda gold, answer: mean_the_same(gold.name, answer.name),
        }

    def are_same(self, gold: Node, answer: Node) -> bool:
        """Return whether two values are the same answer."""
        self.work.spend()
        if gold.kind == answer.kind == "number" and gold.number == answer.number:
            return True
        if (gold.kind == "text") != (answer.kind == "text"):
            gold, answer = read_set_in_words(gold), read_set_in_words(answer)
        if describes_family(gold) or describes_family(answer):
            same = are_same_families(gold, answer, self.are_same, self.work)
            if same is not None:
                return same
        gold, answer = self.drop_name(gold, answer), self.drop_name(answer, gold)
        answer = rename_parameter(gold, answer)
        left, right = self.list_items(gold), self.list_items(answer)
        if len(left) > 1 or len(right) > 1 or "set" in (gold.kind, answer.kind):
            return self.are_same_lists(gold, answer, left, right)
        return self.are_same_values(left[0] if left else gold, right[0] if right else answer)

    def drop_name(self, node: Node, other: Node) -> Node:
        """Reduce S = {1, 2} or x ∈ {1, 2} to the set, if the other side has no name."""
        if node.kind == "relation" and node.name in {"=", "in"} and node.parts[1].kind == "set":
            named = other.kind == "relation" or any(part.kind == "relation" for part in other.parts)
            if self.is_name(node.parts[0]) and not named:
                return node.parts[1]
            if node.name == "in" and other.kind == "list":  # x ∈ {1, 2} against x = 1 or x = 2
                return Node(
                    "list", "or", tuple(Node("relation", "=", (node.parts[0], part)) for part in node.parts[1].parts)
                )
        return node

    def list_items(self, node: Node) -> list[Node]:
        """Return the answers that a list, a set or a ± stands for."""
        if node.kind in {"list", "set"}:
            items = [item for part in node.parts for item in self.expand_signs(part)]
        else:
            items = self.expand_signs(node)
        if len(items) > MAX_ITEMS:
            raise OverBoundError("too many items")
        return items

    def expand_signs(self, node: Node) -> list[Node]:
        """Return the values that the ± of a node stand for."""
        if node.kind == "list":
            return [node]
        return expand_signs(node, self.work)  # x = ±2 is x = 2 and x = −2

    def are_same_lists(self, gold: Node, answer: Node, left: list[Node], right: list[Node]) -> bool:
        """Compare lists and sets in any order, and a tuple with a bare list in order."""
        kinds = {gold.kind, answer.kind}
        if ("set" in kinds and "list" not in kinds) or self.has_inequalities(gold) or self.has_inequalities(answer):
            same = self.are_same_regions(gold, answer)
            if same is not None:
                return same or self.is_solution(gold, answer)
        for one, other in ((gold, answer), (answer, gold)):
            items, point = one, other
            if other.kind == "relation" and other.name == "=" and other.parts[1].kind == "sequence":
                items, point = sort_by_names(one, other.parts[0]), other.parts[1]  # (x, y) = (1, 2): y = 2, x = 1
            if point.kind == "sequence" and len(self.expand_signs(point)) == 1:
                first, second = (items, point) if one is gold else (point, items)
                return self.is_list_as_tuple(items, point) and self.are_all_same(first.parts, second.parts)
        if is_named_beside_bare(gold, answer):  # a = 2, b = 3 against 2, 3
            return self.are_all_same(gold.parts, answer.parts)
        if min(len(left), len(right)) == 1 and "or" in (
            gold.name,
            answer.name,
        ):  # 7/2 or 3.5: one value in two notations
            return all(self.are_same(one, other) for one in left for other in right)
        return have_same_chains(gold, answer) or self.are_same_items(kinds, left, right)

    def are_same_items(self, kinds: set[str], left: list[Node], right: list[Node]) -> bool:
        """Compare item by item, in any order."""
        # An element of a set counts once; so does a point in a list of points.
        if "set" in kinds or any(part.kind == "sequence" for part in (*left, *right)):
            left, right = self.drop_duplicates(left), self.drop_duplicates(right)
        return self.match_items(left, right)

    def has_inequalities(self, node: Node) -> bool:
        """Return whether a node is a union or contains an inequality."""
        return node.kind == "union" or any(
            part.kind == "relation" and set(part.name.split()) & INEQUALITIES for part in node.parts
        )

    def is_list_as_tuple(self, items: Node, sequence: Node) -> bool:
        """Return whether the policy allows a bare list in place of a tuple."""
        listed = items.kind == "list" and (items.name == "," or (items.name == "and" and has_distinct_names(items)))
        ordered = sequence.name == "()" or (sequence.name == "[]" and len(sequence.parts) > 2)  # [1, 2] is an interval
        return self.policy.bare_list_as_tuple and listed and ordered

    def are_all_same(self, left: tuple[Node, ...], right: tuple[Node, ...]) -> bool:
        """Return whether two sequences are the same, item by item and in order."""
        return len(left) == len(right) and all(map(self.are_same, left, right))

    def drop_duplicates(self, nodes: list[Node]) -> list[Node]:
        """Return the nodes without those that equal an earlier one."""
        unique: list[Node] = []
        for node in nodes:
            if not any(self.are_same(node, other) for other in unique):
                unique.append(node)
        return unique

    def match_items(self, left: list[Node], right: list[Node]) -> bool:
        """Return whether the items can be matched one to one."""
        if len(left) != len(right):
            return False
        if self.policy.ordered_lists:
            return self.are_all_same(tuple(left), tuple(right))
        unmatched = list(right)
        for item in left:
            index = next((index for index, other in enumerate(unmatched) if self.are_same(item, other)), None)
            if index is None:
                return False
            unmatched.pop(index)
        return True

    def are_same_values(self, gold: Node, answer: Node) -> bool:
        """Compare two values that are not lists."""
        if gold.kind != answer.kind or gold.kind not in {"number", "sequence"}:
            gold, answer = self.read_vectors(gold, answer)
        kinds = {gold.kind, answer.kind}
        if kinds & {"relation", "union"}:
            return self.are_same_relations(gold, answer)
        if kinds & {"based", "unit", "ratio"}:
            return self.are_same_quantities(gold, answer) or self.is_near(gold, answer)
        for one, other in ((gold, answer), (answer, gold)):
            if one.kind == "matrix" and one.name == "cases" and is_scalar(other):
                return is_same_function(one, other, self.work)
        if len(kinds) == 1 and gold.kind in self.structures:
            return self.structures[gold.kind](gold, answer)
        return self.are_same_expressions(gold, answer)

    def read_vectors(self, gold: Node, answer: Node) -> tuple[Node, Node]:
        """Compute vectors and matrices, and bring both sides to one notation."""
        if "sequence" in (gold.kind, answer.kind):
            gold, answer = strip_point_name(gold), strip_point_name(answer)
        gold, answer = unify_vectors(compute_vector(gold, self.work), compute_vector(answer, self.work))
        if "matrix" in (gold.kind, answer.kind):
            gold, answer = convert_to_matrix(gold), convert_to_matrix(answer)
            if is_column(gold) or is_column(answer):
                gold, answer = read_as_column(gold), read_as_column(answer)
        return gold, answer

    def are_same_expressions(self, gold: Node, answer: Node) -> bool:
        """Compare expressions, and the few kinds of values that can equal one of another kind."""
        if gold.name.startswith("\\mathbb ") and answer.kind == "symbol" and len(answer.name) == 1:  # ℝ against R
            return gold.name.removeprefix("\\mathbb ") == answer.name
        if is_scalar(gold) and is_scalar(answer):
            gold, answer = unify_imaginary_unit(gold, answer), unify_imaginary_unit(answer, gold)
            return (
                are_same_scalar(gold, answer, self.work)
                or are_same_with_constants(gold, answer, self.work)
                or self.is_near(gold, answer)
            )
        if {gold.kind, answer.kind} <= {"sequence", "symbol"}:
            return bool(self.are_same_regions(gold, answer))
        if any(node.kind in COMPUTED and not is_scalar(node) for node in (gold, answer)):
            raise UnreadableError("arithmetic on sets, lists or other structures")
        return False

    def are_same_cells(self, gold: Node, answer: Node) -> bool:
        """Compare part by part. The kind of bracket matters for pairs or intervals, but not for longer tuples."""
        alike = gold.name == answer.name or (len(gold.parts) > 2 and {gold.name, answer.name} == {"()", "[]"})
        return alike and self.are_all_same(gold.parts, answer.parts)

    def are_same_matrices(self, gold: Node, answer: Node) -> bool:
        """Compare matrices cell by cell, and functions by cases row by row in any order."""
        if gold.name == answer.name == "cases":
            return are_same_cases(gold, answer, self.are_same, self.work)
        return self.are_same_cells(gold, answer)

    def are_same_quantities(self, gold: Node, answer: Node) -> bool:
        """Compare numbers with a base or a unit, and ratios."""
        kinds = {gold.kind, answer.kind}
        if "based" in kinds:
            return are_same_in_base(gold, answer, self.policy)
        if "unit" in kinds:
            return are_same_quantity(gold, answer, self.policy, self.work)
        scalar = all(node.kind == "ratio" or is_scalar(node) for node in (gold, answer))
        return scalar and are_same_ratio(gold, answer, self.work)

    def are_congruent(self, gold: Node, answer: Node) -> bool:
        """Return whether two values are congruent, such as 3 and 10 modulo 7."""
        if not self.are_same(gold.parts[1], answer.parts[1]):
            return False
        modulus, one, other = (
            compute_rational(part, self.work) for part in (gold.parts[1], gold.parts[0], answer.parts[0])
        )
        if modulus and one is not None and other is not None:
            return ((one - other) / modulus).denominator == 1
        return self.are_same(gold.parts[0], answer.parts[0])

    def is_near(self, gold: Node, answer: Node) -> bool:
        """Return whether the policy accepts an answer whose value does not equal that of the gold."""
        near = are_near(gold, answer, self.policy, self.work)
        self.near = self.near or near
        return near
