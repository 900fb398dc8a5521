"""Are two typed values the same answer? One question a kind, in the order in which kinds say more."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from qed.grading.bounds import MOST_ITEMS, OverBoundError, UnreadableError, Work
from qed.grading.equivalent_forms import as_matrix, located, named_beside_bare, plain, with_i
from qed.grading.exact import UndefinedError, rational
from qed.grading.inequalities import solves
from qed.grading.matrices import simplified
from qed.grading.policy import Policy
from qed.grading.quantities import same_based, same_quantity, same_ratio
from qed.grading.regions import FLIPPED, region, same_region
from qed.grading.scalars import is_scalar, names_in, ratio, same_scalar
from qed.grading.tree import Node, with_signs

COMPUTED = {"negate", "add", "multiply", "divide", "power", "function", "apply"}
INEQUALITIES = {"<", "<=", ">", ">=", "!="}


class Comparison:
    """One comparison: its conventions, and the work that is left for it."""

    def __init__(self, policy: Policy, work: Work) -> None:
        self.policy = policy
        self.work = work
        self.structures: dict[str, Callable[[Node, Node], bool]] = {
            "sequence": self.same_cells,
            "matrix": self.same_cells,
            "row": self.same_cells,
            "congruence": self.same_congruence,
            "text": lambda gold, answer: plain(gold.name) == plain(answer.name),
        }

    def same(self, gold: Node, answer: Node) -> bool:
        """Whether two values are the same answer."""
        self.work.spend()
        gold, answer = self.unnamed(gold, answer), self.unnamed(answer, gold)
        left, right = self.items(gold), self.items(answer)
        if len(left) > 1 or len(right) > 1 or "set" in (gold.kind, answer.kind):
            return self.same_many(gold, answer, left, right)
        return self.same_one(left[0] if left else gold, right[0] if right else answer)

    def unnamed(self, node: Node, other: Node) -> Node:
        """S = {1, 2} and x ∈ {1, 2} are the set, beside what has no name."""
        if node.kind == "relation" and node.name in {"=", "in"} and node.parts[1].kind == "set":
            named = other.kind == "relation" or any(part.kind == "relation" for part in other.parts)
            if self.is_name(node.parts[0]) and not named:
                return node.parts[1]
        return node

    def items(self, node: Node) -> list[Node]:
        """The answers that a list, a set or a ± stands for."""
        if node.kind in {"list", "set"}:
            found = [one for part in node.parts for one in self.signed(part)]
        else:
            found = self.signed(node)
        if len(found) > MOST_ITEMS:
            raise OverBoundError("too many items")
        return found

    def signed(self, node: Node) -> list[Node]:
        if node.kind == "list":
            return [node]
        if node.kind == "relation" and node.name == "=":  # x = ±2 is x = 2 and x = −2
            return [node._replace(parts=(node.parts[0], right)) for right in with_signs(node.parts[1], self.work)]
        return with_signs(node, self.work)

    def same_many(self, gold: Node, answer: Node, left: list[Node], right: list[Node]) -> bool:
        """Lists and sets, in any order; a tuple beside a bare list, in its order."""
        kinds = {gold.kind, answer.kind}
        if ("set" in kinds and "list" not in kinds) or self.inequalities(gold) or self.inequalities(answer):
            found = self.same_regions(gold, answer)
            if found is not None:
                return found or self.solved(gold, answer)
        for one, other in ((gold, answer), (answer, gold)):
            if other.kind == "relation" and other.name == "=" and other.parts[1].kind == "sequence":
                other = other.parts[1]  # (x, y) = (1, 2) beside x = 1, y = 2
            if other.kind == "sequence" and len(self.signed(other)) == 1:
                return one.kind == "list" and self.list_as_tuple(one, other)
        if named_beside_bare(gold, answer):  # a = 2, b = 3 beside 2, 3
            return self.all_same(gold.parts, answer.parts)
        if min(len(left), len(right)) == 1 and "or" in (gold.name, answer.name):  # 7/2 or 3.5: one value, said twice
            return all(self.same(one, other) for one in left for other in right)
        return self.same_items(kinds, left, right)

    def same_items(self, kinds: set[str], left: list[Node], right: list[Node]) -> bool:
        """Item by item, in any order."""
        # An element of a set counts once, and so does a point in a list of points.
        if "set" in kinds or any(part.kind == "sequence" for part in (*left, *right)):
            left, right = self.distinct(left), self.distinct(right)
        return self.matched(left, right)

    def inequalities(self, node: Node) -> bool:
        return node.kind == "union" or any(
            part.kind == "relation" and set(part.name.split()) & INEQUALITIES for part in node.parts
        )

    def list_as_tuple(self, items: Node, sequence: Node) -> bool:
        if not self.policy.bare_list_as_tuple or items.name != "," or sequence.name != "()":
            return False
        return self.all_same(items.parts, sequence.parts)

    def all_same(self, left: tuple[Node, ...], right: tuple[Node, ...]) -> bool:
        return len(left) == len(right) and all(map(self.same, left, right))

    def distinct(self, nodes: list[Node]) -> list[Node]:
        found: list[Node] = []
        for node in nodes:
            if not any(self.same(node, other) for other in found):
                found.append(node)
        return found

    def matched(self, left: list[Node], right: list[Node]) -> bool:
        """Each on the left has its own on the right."""
        if len(left) != len(right):
            return False
        if self.policy.ordered_lists:
            return self.all_same(tuple(left), tuple(right))
        waiting = list(right)
        for one in left:
            place = next((place for place, other in enumerate(waiting) if self.same(one, other)), None)
            if place is None:
                return False
            waiting.pop(place)
        return True

    def same_one(self, gold: Node, answer: Node) -> bool:
        """Two values that are no lists."""
        gold, answer = simplified(gold, self.work), simplified(answer, self.work)
        if "sequence" in (gold.kind, answer.kind):
            gold, answer = located(gold), located(answer)
        if "matrix" in (gold.kind, answer.kind):
            gold, answer = as_matrix(gold), as_matrix(answer)
        kinds = {gold.kind, answer.kind}
        if kinds & {"relation", "union"}:
            return self.same_relation(gold, answer)
        if kinds & {"based", "unit", "ratio"}:
            return self.same_number(gold, answer)
        if len(kinds) == 1 and gold.kind in self.structures:
            return self.structures[gold.kind](gold, answer)
        return self.same_rest(gold, answer)

    def same_rest(self, gold: Node, answer: Node) -> bool:
        """Expressions, and the few kinds that may be the same as another kind."""
        if is_scalar(gold) and is_scalar(answer):
            gold, answer = with_i(gold, answer), with_i(answer, gold)
            return same_scalar(gold, answer, self.work) or self.rounds_to(gold, answer)
        if {gold.kind, answer.kind} <= {"sequence", "symbol"}:
            return bool(self.same_regions(gold, answer))
        if any(node.kind in COMPUTED and not is_scalar(node) for node in (gold, answer)):
            raise UnreadableError("arithmetic on structures")
        return False

    def same_cells(self, gold: Node, answer: Node) -> bool:
        """Part by part. Brackets tell intervals from each other, not triples."""
        alike = gold.name == answer.name or (len(gold.parts) > 2 and {gold.name, answer.name} == {"()", "[]"})
        return alike and self.all_same(gold.parts, answer.parts)

    def same_number(self, gold: Node, answer: Node) -> bool:
        """Numbers with a base, a unit, or as a ratio."""
        kinds = {gold.kind, answer.kind}
        if "based" in kinds:
            return same_based(gold, answer, self.policy)
        if "unit" in kinds:
            return same_quantity(gold, answer, self.policy, self.work)
        scalar = all(node.kind == "ratio" or is_scalar(node) for node in (gold, answer))
        return scalar and same_ratio(gold, answer, self.work)

    def same_congruence(self, gold: Node, answer: Node) -> bool:
        """3 and 10 are the same modulo 7."""
        if not self.same(gold.parts[1], answer.parts[1]):
            return False
        modulus, one, other = (rational(part, self.work) for part in (gold.parts[1], gold.parts[0], answer.parts[0]))
        if modulus and one is not None and other is not None:
            return ((one - other) / modulus).denominator == 1
        return self.same(gold.parts[0], answer.parts[0])

    def rounds_to(self, gold: Node, answer: Node) -> bool:
        """Whether the answer, exactly, rounds to the decimals of the gold."""
        if not self.policy.rounded_gold or gold.kind != "number" or names_in(answer):
            return False
        places = next((place for place in range(1, 20) if (gold.number * 10**place).denominator == 1), 0)
        try:
            value = rational(answer, self.work)
        except UndefinedError:
            return False
        return value is not None and places > 0 and abs(value - gold.number) <= Fraction(1, 2 * 10**places)

    def same_regions(self, gold: Node, answer: Node) -> bool | None:
        """The same set of reals; None where one of them is not described as one."""
        left, right = region(gold, self.work), region(answer, self.work)
        if left is None or right is None:
            return None
        if (left.variable is None) != (right.variable is None):
            variable = left.variable or right.variable
            named = variable is not None and variable.kind != "function" and self.is_name(variable)
            if not self.policy.interval_as_inequality or not named:
                return False  # |x| < 2 says of |x| what x < 2 says of x
        return same_region(left, right, self.work)

    def solved(self, gold: Node, answer: Node) -> bool:
        """Whether one is an inequality and the other the set that solves it."""
        if not self.policy.interval_as_inequality:
            return False
        for one, other in ((gold, answer), (answer, gold)):
            found = region(other, self.work) if one.kind == "relation" else None
            if found is not None and solves(found, one, self.work):
                return True
        return False

    def same_relation(self, gold: Node, answer: Node) -> bool:
        """Equations, inequalities and unions."""
        both = gold.kind == answer.kind == "relation"
        if both and "=" in (gold.name, answer.name):
            return gold.name == answer.name and self.same_equation(gold, answer)
        for one, other in ((gold, answer), (answer, gold)):
            if one.kind == "relation" and one.name == "=":
                return self.same_as_equation(one, other)
        if self.same_regions(gold, answer) or self.solved(gold, answer):
            return True
        return self.same_inequality(gold, answer) if both else self.same_set(gold, answer)

    def same_set(self, gold: Node, answer: Node) -> bool:
        """Sets whose ends are no constants: x ∈ S is S, and unions are the same in any order."""
        for one, other in ((gold, answer), (answer, gold)):
            if one.kind == "relation" and one.name == "in":
                return self.same(one.parts[1], other)
        if gold.kind == answer.kind == "union" and gold.name == answer.name == "or":
            return self.matched(self.united(gold), self.united(answer))
        return False

    def united(self, node: Node) -> list[Node]:
        if node.kind == "union" and node.name == "or":
            return [inner for part in node.parts for inner in self.united(part)]
        return [node]

    def same_equation(self, gold: Node, answer: Node) -> bool:
        """The same sides, or one a constant multiple of the other."""
        left, right = gold.parts, answer.parts
        if not all(map(is_scalar, (*left, *right))):
            return self.all_same(left, right) or self.all_same(left[::-1], right)
        if self.all_same(left, right) or self.all_same(left[::-1], right):
            return True
        return ratio(_difference(left), _difference(right), self.work) is not None

    def same_as_equation(self, equation: Node, other: Node) -> bool:
        """x = 5 is 5: the name before the sign may be dropped, an expression may not."""
        left, right = equation.parts
        if left == right:  # 5 = 5 says nothing
            return False
        if self.is_name(left):
            return self.same(right, other)
        if self.is_name(right) and not names_in(left):
            return self.same(left, other)
        if is_scalar(left) and is_scalar(right) and not names_in(left, right) and same_scalar(left, right, self.work):
            return self.same(right, other)
        return False

    def is_name(self, node: Node) -> bool:
        """A symbol, f(x), |AB|, AB/CD, A:B, (x, y): something that is called, not computed."""
        if node.kind in {"symbol", "apply", "text"}:
            return True
        if node.kind == "function":
            return node.name not in {"root", "!", "\\binom"} and bool(names_in(node))
        if node.kind in {"sequence", "multiply", "ratio", "divide"}:
            return all(map(self.is_name, node.parts))
        return node.kind == "constant" and node.name == "e"

    def same_inequality(self, gold: Node, answer: Node) -> bool:
        """The same sides in one direction or the other, or one a multiple of the other."""
        left, right = gold.name.split(), answer.name.split()
        turned = [FLIPPED.get(sign, sign) for sign in right[::-1]]
        if left == right and self.all_same(gold.parts, answer.parts):
            return True
        if left == turned and self.all_same(gold.parts, answer.parts[::-1]):
            return True
        if len(left) != 1 or len(right) != 1 or not all(map(is_scalar, (*gold.parts, *answer.parts))):
            return False
        factor = ratio(_difference(gold.parts), _difference(answer.parts), self.work)
        if factor is None or getattr(factor, "imag", 0) != 0:
            return False
        return left == right if factor.real > 0 or left == ["!="] else left == [FLIPPED.get(right[0], "")]


def _difference(sides: tuple[Node, ...]) -> Node:
    return Node("add", parts=(sides[0], Node("negate", parts=(sides[1],))))
