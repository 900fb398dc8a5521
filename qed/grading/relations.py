"""Compare relations: equations, inequalities, and the sets that they describe."""

from __future__ import annotations

from abc import ABC, abstractmethod

from qed.grading.bounds import Work
from qed.grading.closeness import PERCENT
from qed.grading.constants import rename_constant
from qed.grading.equations import rename_argument, solves_equation, strip_argument, subtract
from qed.grading.equivalent_forms import is_combination
from qed.grading.inequalities import solves
from qed.grading.policy import Policy
from qed.grading.regions import FLIPPED, are_same_region, build_region
from qed.grading.scalars import are_same_scalar, compute_ratio, is_scalar, list_names
from qed.grading.statements import is_denying, is_other_answer
from qed.grading.tree import Node, walk

INVERTED = {"\\log", "\\ln", "\\exp"}


class Relations(ABC):
    """The part of a comparison that handles relations; subclasses compare the sides."""

    policy: Policy
    work: Work

    @abstractmethod
    def are_same(self, gold: Node, answer: Node) -> bool:
        """Return whether two values are the same answer."""

    @abstractmethod
    def are_all_same(self, left: tuple[Node, ...], right: tuple[Node, ...]) -> bool:
        """Return whether two sequences are the same, item by item and in order."""

    @abstractmethod
    def match_items(self, left: list[Node], right: list[Node]) -> bool:
        """Return whether the items can be matched one to one."""

    def are_same_regions(self, gold: Node, answer: Node) -> bool | None:
        """Return whether two values are the same set of reals; None if one of them does not describe a set."""
        left, right = build_region(gold, self.work), build_region(answer, self.work)
        if left is None or right is None:
            return None
        if (left.variable is None) != (right.variable is None):
            variable = left.variable or right.variable
            named = variable is not None and variable.kind != "function" and self.is_name(variable)
            if not self.policy.interval_as_inequality or not named:
                return False  # |x| < 2 is the interval for |x|, not for x
        return are_same_region(left, right, self.work)

    def is_solution(self, gold: Node, answer: Node) -> bool:
        """Return whether one value is an unsolved inequality and the other its solution set."""
        if not self.policy.interval_as_inequality:
            return False
        for one, other in ((gold, answer), (answer, gold)):
            region = build_region(other, self.work) if self.is_unsolved(one) else None
            if region is not None and solves(region, one, self.work):
                return True
        return False

    def is_unsolved(self, node: Node) -> bool:
        """Return whether a relation such as 2x > 4 does not state its solution set, as x > 2 does."""
        region = build_region(node, self.work) if node.kind == "relation" else None
        solved = region is not None and region.variable is not None and region.variable.kind == "symbol"
        return node.kind == "relation" and not solved

    def are_same_relations(self, gold: Node, answer: Node) -> bool:
        """Compare equations, inequalities and unions."""
        both = gold.kind == answer.kind == "relation"
        if both and "=" in (gold.name, answer.name):
            return gold.name == answer.name and self.are_same_equations(gold, answer)
        for one, other in ((gold, answer), (answer, gold)):
            if one.kind == "relation" and one.name == "=":
                if one is answer and other.kind != "relation" and any(map(is_combination, one.parts)):
                    asked = one.parts[is_combination(one.parts[0])]  # m + n = 204 is 204, S = ab + cd is ab + cd
                    name = one.parts[0]
                    # Neither a + b - a = a + b nor a = a + b names a sum, and e is a number.
                    named = not name.parts and name.name != "e" and name not in walk(one.parts[1])
                    return self.are_same(other, asked) or (named and self.equals_right_side(one, other, answered=True))
                return self.equals_right_side(one, other, answered=one is answer)
        if self.are_same_regions(gold, answer) or self.is_solution(gold, answer):
            return True
        return self.are_same_inequalities(gold, answer) if both else self.are_same_sets(gold, answer)

    def are_same_sets(self, gold: Node, answer: Node) -> bool:
        """Compare sets whose ends are not constants: x ∈ S equals S, and unions are equal in any order."""
        if gold.kind == "relation" and gold.name == "in":
            return self.are_same(gold.parts[1], answer)
        if answer.kind == "relation" and answer.name == "in":
            return self.are_same(gold, answer.parts[1])
        if gold.kind == answer.kind == "union" and gold.name == answer.name == "or":
            return self.match_items(self.list_union(gold), self.list_union(answer))
        return False

    def list_union(self, node: Node) -> list[Node]:
        """Return the members of a nested union."""
        if node.kind == "union" and node.name == "or":
            return [inner for part in node.parts for inner in self.list_union(part)]
        return [node]

    def are_same_equations(self, gold: Node, answer: Node) -> bool:
        """Return whether two equations have the same sides, or one is a constant multiple of the other."""
        answer = rename_argument(gold, rename_constant(gold, strip_argument(gold, answer)))
        left, right = gold.parts, answer.parts
        if not all(map(is_scalar, (*left, *right))):
            return self.are_all_same(left, right) or self.are_all_same(left[::-1], right)
        if self.are_all_same(left, right) or self.are_all_same(left[::-1], right):
            return True
        if compute_ratio(subtract(left), subtract(right), self.work) is not None:
            return True
        return solves_equation(left, right, self.work) or solves_equation(right, left, self.work)

    def equals_right_side(self, equation: Node, other: Node, answered: bool = False) -> bool:
        """Return whether x = 5 equals 5: a name before the sign may be omitted, or an expression of the same value.

        Args:
            equation: the gold or the answer.
            other: the other one.
            answered: whether the equation is the answer, which may show its calculation with names.
        """
        left, right = equation.parts
        if left == right or is_other_answer(left, right):  # 5 = 5 has no content
            return False
        value = self.find_stated(left, right, answered)
        if value is None:
            return False
        return self.are_same(other, value) if answered else self.are_same(value, other)

    def find_stated(self, left: Node, right: Node, identities: bool) -> Node | None:
        """Return the side of an equation that is the stated value; None if the equation is more than a value."""
        if self.is_name(left):
            return right
        if self.is_name(right) and not list_names(left):
            return left
        # 3 × 14 = 42 apples: the calculation has no unit.
        value = right.parts[0] if right.kind == "unit" and right.name != PERCENT else right
        computed = is_scalar(left) and is_scalar(value) and (identities or not list_names(left, value))
        return right if computed and are_same_scalar(left, value, self.work) else None

    def is_name(self, node: Node) -> bool:
        """Return whether a node is a name and not a computed value: a symbol, f(x), |AB|, AB/CD, A:B, (x, y)."""
        if node.kind in {"symbol", "apply", "text"}:
            return node.kind != "text" or not is_denying(node.name)
        if node.kind == "function":
            inverted = node.name in INVERTED and node.parts[0].kind == "symbol"  # ln x = 4 gives x another value
            return node.name not in {"root", "!", "\\binom"} and not inverted and bool(list_names(node))
        if node.kind in {"sequence", "multiply", "ratio", "divide"}:
            return all(map(self.is_name, node.parts))
        return node.kind == "constant" and node.name == "e"

    def are_same_inequalities(self, gold: Node, answer: Node) -> bool:
        """Return whether two inequalities have the same sides, in either direction, or are multiples of each other."""
        left, right = gold.name.split(), answer.name.split()
        flipped = [FLIPPED.get(sign, sign) for sign in right[::-1]]
        if left == right and self.are_all_same(gold.parts, answer.parts):
            return True
        if left == flipped and self.are_all_same(gold.parts, answer.parts[::-1]):
            return True
        if len(left) != 1 or len(right) != 1 or not all(map(is_scalar, (*gold.parts, *answer.parts))):
            return False
        factor = compute_ratio(subtract(gold.parts), subtract(answer.parts), self.work)
        if factor is None or getattr(factor, "imag", 0) != 0:
            return False
        return left == right if factor.real > 0 or left == ["!="] else left == [FLIPPED.get(right[0], "")]
