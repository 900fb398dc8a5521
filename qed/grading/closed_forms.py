"""Constants as algebraic expressions in independent transcendental ones: π, e, ln 2, sin 1.

`Reducer.reduce` rewrites an expression: logarithms of rationals become sums over primes, sines at rational multiples of
π become roots of unity, and what remains transcendental becomes an atom. An identity that holds for other values of the
atoms also holds for their own values: in this way an algebraic test proves ln 6 = ln 2 + ln 3.
A rule raises UndefinedError where there is no value, and UnreadableError where it cannot decide a sign or an order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from qed.grading.angles import ANGLES
from qed.grading.balls import IndeterminateError, Precision
from qed.grading.bounds import OverBoundError, UnreadableError, Work
from qed.grading.enclosures import enclose
from qed.grading.exact import UndefinedError, compute_rational
from qed.grading.linear_terms import IMAGINARY, ONE, PI, TWO, add, divide, find_fraction, multiply, split
from qed.grading.numeric import DIGITS
from qed.grading.tree import Node, make_number, negate

E = Node("constant", "e")
MAX_PRIME = 1_000  # of the factors that a logarithm is split into


class Reducer:
    """Rewrites constants; `atoms` maps the transcendental constants found so far, in order, to symbols."""

    def __init__(self, work: Work, prove_zero: Callable[[Reducer, Node], bool]) -> None:
        self.work = work
        self.prove_zero = prove_zero
        self.atoms: dict[Node, Node] = {}

    def name_atom(self, node: Node) -> Node:
        """Return the symbol that stands for a transcendental constant."""
        return self.atoms.setdefault(node, Node("symbol", f"atom {len(self.atoms)}"))

    def is_zero(self, node: Node) -> bool:
        """Return whether a rewritten constant is proven to be zero."""
        return self.prove_zero(self, node)

    def find_atom(self, symbol: Node, name: str) -> Node | None:
        """Return the argument of the named function that a symbol stands for; None if it stands for something else."""
        return next(
            (atom.parts[0] for atom, known in self.atoms.items() if known == symbol and atom.name == name), None
        )

    def reduce(self, node: Node) -> Node:
        """Rewrite an expression.

        Raises:
            UnreadableError: it contains something other than constants.
            UndefinedError: it has no value.
        """
        self.work.spend()
        if node.kind in {"number", "symbol", "turn", "constant"}:
            return self.reduce_leaf(node)
        if node.kind == "degree":
            return self.fold(multiply(self.reduce(node.parts[0]), self.name_atom(PI), make_number(Fraction(1, 180))))
        if node.kind not in {"add", "multiply", "divide", "ratio", "negate", "power", "function"}:
            raise UnreadableError(f"a {node.kind} has no value")
        if node.kind == "function" and node.name in FUNCTIONS:
            return FUNCTIONS[node.name](self, *map(self.reduce, node.parts))
        parts = tuple(map(self.reduce, node.parts))
        if node.kind == "power":
            return self.reduce_power(*parts)
        if node.kind == "function" and node.name != "root":
            return self.reduce_other_function(self.fold(node._replace(parts=parts)))
        return self.fold(node._replace(kind="divide" if node.kind == "ratio" else node.kind, parts=parts))

    def reduce_leaf(self, node: Node) -> Node:
        """Rewrite a node without parts: π and e become atoms."""
        if node.kind != "constant" or node == IMAGINARY:
            return node
        if node.name == "infinity":
            raise UndefinedError("infinity in an expression")
        return self.name_atom(node)

    def reduce_other_function(self, node: Node) -> Node:
        """Rewrite the factorial of a half; other values that are not rational become atoms."""
        if node.kind == "number":
            return node
        if node.name in {"\\max", "\\min"}:
            return self.choose_extreme(node)
        factorial = _compute_half_factorial(node.parts[0]) if node.name == "!" else None
        if factorial is None:
            return self.name_atom(node)
        return multiply(make_number(factorial), Node("function", "root", (self.name_atom(PI), TWO)))

    def choose_extreme(self, node: Node) -> Node:
        """Return the largest or the smallest part, if the signs of all differences are certain."""
        best = node.parts[0]
        for part in node.parts[1:]:
            difference = self.measure(add(part, negate(best)))
            if difference is None:
                raise UnreadableError("the extreme of values that may be equal")
            best = part if (difference > 0) == (node.name == "\\max") else best
        return best

    def fold(self, node: Node) -> Node:
        """Compute a node whose parts are rational."""
        if all(part.kind == "number" for part in node.parts):
            try:
                value = compute_rational(node, self.work)
            except OverBoundError:
                value = None
            if value is not None:
                return make_number(value)
        return node

    def measure(self, node: Node) -> Any:
        """Return the real value of a rewritten constant, with a certain sign; None if it is zero or not real."""
        ball = enclose(self.restore(node), precision := Precision(DIGITS, self.work))
        if not precision.is_real(ball) or precision.measure(ball.value) - 3 < ball.error:
            return None
        return ball.value

    def restore(self, node: Node) -> Node:
        """Replace the atoms by the constants that they stand for."""
        if node.kind == "symbol":
            return next((self.restore(atom) for atom, name in self.atoms.items() if name == node), node)
        return node._replace(parts=tuple(map(self.restore, node.parts))) if node.parts else node

    def reduce_power(self, base: Node, above: Node) -> Node:
        """Rewrite a power: as an algebraic one if the exponent is rational, else as an exponential."""
        if above.kind == "number":
            if base == IMAGINARY and above.number.denominator == 1:
                return (ONE, IMAGINARY, make_number(-1), Node("negate", parts=(IMAGINARY,)))[above.number.numerator % 4]
            return self.fold(Node("power", parts=(base, above)))
        if base == self.atoms.get(E):
            return self.exponentiate(above)
        return self.exponentiate(self.fold(multiply(above, self.take_logarithm(base))))

    def exponentiate(self, above: Node) -> Node:
        """Rewrite exp of a sum as a product over its terms."""
        factors = []
        for term, count in split(above).items():
            factors.append(self.exponentiate_term(term, count))
        return self.fold(multiply(*factors)) if len(factors) > 1 else factors[0] if factors else ONE

    def exponentiate_term(self, term: Node, count: Fraction) -> Node:
        """Rewrite exp of one term: of a logarithm, of a rational multiple of iπ, or of anything else."""
        if term == ONE:
            return Node("power", parts=(self.name_atom(E), make_number(count)))
        pi = self.name_atom(PI)
        if term.kind == "multiply" and len(term.parts) == 2 and set(term.parts) == {IMAGINARY, pi}:
            return add(Node("turn", "\\cos", number=count), multiply(IMAGINARY, Node("turn", "\\sin", number=count)))
        base = self.find_atom(term, "\\ln")
        if base is None:
            base = self.name_atom(Node("function", "\\exp", (term,)))
        return self.fold(Node("power", parts=(base, make_number(count))))

    def take_logarithm(self, node: Node) -> Node:
        """Rewrite a logarithm as a sum over the factors."""
        if node == self.atoms.get(E):
            return ONE
        if node.kind == "number":
            return self.take_logarithm_of_rational(node.number)
        if (above := self.find_atom(node, "\\exp")) is not None:
            return above
        if node == IMAGINARY:
            return multiply(make_number(Fraction(1, 2)), IMAGINARY, self.name_atom(PI))
        if not self.is_positive(node):
            raise UnreadableError("the logarithm of a value that is not positive")
        return self.take_logarithm_of_positive(node)

    def take_logarithm_of_positive(self, node: Node) -> Node:
        """Rewrite the logarithm of a positive number that is not rational."""
        powers = node.kind == "power" or (node.kind == "function" and node.name == "root")
        if powers and self.is_positive(node.parts[0]):
            count = node.parts[1] if node.kind == "power" else divide(ONE, node.parts[1])
            return self.fold(multiply(self.fold(count), self.take_logarithm(node.parts[0])))
        if node.kind in {"multiply", "divide"} and all(map(self.is_positive, node.parts)):
            logarithms = list(map(self.take_logarithm, node.parts))
            if node.kind == "divide":
                logarithms[1] = negate(logarithms[1])
            return self.fold(add(*logarithms))
        return self.relate_logarithm(node)

    def is_positive(self, node: Node) -> bool:
        """Return whether a rewritten constant is certainly positive."""
        value = self.measure(node)
        return value is not None and value > 0

    def take_logarithm_of_rational(self, value: Fraction) -> Node:
        """Rewrite the logarithm of a rational number as a sum over primes."""
        if value == 0:
            raise UndefinedError("the logarithm of zero")
        if value < 0:
            return add(multiply(IMAGINARY, self.name_atom(PI)), self.take_logarithm_of_rational(-value))
        terms = []
        for number, sign in ((value.numerator, 1), (value.denominator, -1)):
            for prime, count in _factor(number).items():
                name = self.name_atom(Node("function", "\\ln", (make_number(prime),)))
                terms.append(multiply(make_number(sign * count), name))
        return self.fold(add(*terms)) if terms else make_number(0)

    def relate_logarithm(self, node: Node) -> Node:
        """Return the logarithm of an irrational number as a multiple of a known one, or as an atom."""
        precision = Precision(DIGITS, self.work)
        value = precision.arithmetic.ln(self.measure(node))
        for atom, name in list(self.atoms.items()):
            if atom.name != "\\ln" or atom.parts[0].kind == "number":
                continue
            ratio = value / precision.arithmetic.ln(self.measure(atom.parts[0]))
            count = find_fraction(ratio, 12)
            if count is None:
                continue
            powers = [(node, count.denominator), (atom.parts[0], count.numerator)]
            one, two = (Node("power", parts=(base, make_number(times))) for base, times in powers)
            if self.is_zero(add(one, Node("negate", parts=(two,)))):
                return multiply(make_number(count), name)
        return self.name_atom(Node("function", "\\ln", (node,)))

    def take_size(self, value: Node) -> Node:
        """Rewrite an absolute value by the sign of its argument."""
        if value.kind == "number":
            return make_number(abs(value.number))
        precision = Precision(DIGITS, self.work)
        ball = enclose(self.restore(value), precision)
        if not precision.is_real(ball):
            return Node("function", "root", (self.fold(multiply(value, _conjugate(value))), TWO))
        if precision.measure(ball.value) - 3 < ball.error:
            if self.is_zero(value):
                return make_number(0)
            raise UnreadableError("the sign of a value near zero")
        return value if ball.value > 0 else negate(value)

    def round_down(self, name: str, value: Node) -> Node:
        """Compute a floor or a ceiling; a value at an integer must be proven to be equal to it."""
        precision = Precision(DIGITS, self.work)
        try:
            ball = enclose(Node("function", name, (self.restore(value),)), precision)
            return make_number(int(ball.value))
        except IndeterminateError:
            inner = enclose(self.restore(value), precision)
            nearest = make_number(int(precision.arithmetic.nint(precision.require_real(inner))))
            if self.is_zero(self.fold(add(value, negate(nearest)))):
                return nearest
            raise


def _conjugate(node: Node) -> Node:
    if node == IMAGINARY:
        return Node("negate", parts=(IMAGINARY,))
    if node.kind in {"add", "multiply", "divide", "negate", "power"}:
        return node._replace(parts=tuple(map(_conjugate, node.parts)))
    return node


def _compute_half_factorial(value: Node) -> Fraction | None:
    """Return the rational factor of √π in the factorial of a half: (1/2)! is √π/2."""
    if value.kind != "number" or value.number.denominator != 2 or not 0 < value.number < 100:
        return None
    return math.prod((value.number - step for step in range(int(value.number) + 1)), start=Fraction(1))


def _factor(number: int) -> dict[int, int]:
    factors: dict[int, int] = {}
    divisor = 2
    while divisor <= MAX_PRIME and divisor * divisor <= number:
        while number % divisor == 0:
            factors[divisor] = factors.get(divisor, 0) + 1
            number //= divisor
        divisor += 1
    if number > 1:
        factors[number] = 1
    return factors


def _reduce_hyperbolic(name: str) -> Callable[..., Node]:
    def rule(reducer: Reducer, value: Node) -> Node:
        up, down = reducer.exponentiate(value), reducer.exponentiate(reducer.fold(negate(value)))
        sine, cosine = add(up, negate(down)), add(up, down)
        return divide(sine, cosine) if name == "\\tanh" else divide(sine if name == "\\sinh" else cosine, TWO)

    return rule


def _reduce_logarithm(name: str) -> Callable[..., Node]:
    def rule(reducer: Reducer, value: Node, *base: Node) -> Node:
        base = base or ((make_number(10),) if name == "\\log" else ())
        above = reducer.take_logarithm(value)
        return reducer.fold(divide(above, reducer.take_logarithm(base[0]))) if base else above

    return rule


FUNCTIONS: dict[str, Callable[..., Node]] = {
    "\\exp": lambda reducer, above: reducer.exponentiate(above),
    "\\ln": _reduce_logarithm("\\ln"),
    "\\log": _reduce_logarithm("\\log"),
    "\\sinh": _reduce_hyperbolic("\\sinh"),
    "\\cosh": _reduce_hyperbolic("\\cosh"),
    "\\tanh": _reduce_hyperbolic("\\tanh"),
    "\\abs": lambda reducer, value: reducer.take_size(value),
    "\\cbrt": lambda reducer, value: reducer.fold(Node("function", "root", (value, make_number(3)))),
    "\\floor": lambda reducer, value: reducer.round_down("\\floor", value),
    "\\ceil": lambda reducer, value: reducer.round_down("\\ceil", value),
} | ANGLES
