"""Values that a policy accepts although they are not equal: rounded, within a tolerance, or off by a factor of 100."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from qed.grading.balls import IndeterminateError, Precision
from qed.grading.bounds import UnreadableError, Work
from qed.grading.enclosures import enclose
from qed.grading.exact import UndefinedError, compute_rational
from qed.grading.numeric import DIGITS, Point, evaluate, get_context
from qed.grading.policy import Policy
from qed.grading.scalars import is_scalar, list_names
from qed.grading.tree import Node, negate

PERCENT = "percent"
NEVER_MISSING = {PERCENT, "am", "pm", "ordinal"}
MIN_DIGITS = 6  # of an answer that rounds the gold
MAX_DECIMALS = 1_000
FACTORS = (Fraction(1, 100), Fraction(1), Fraction(100))


def are_near(gold: Node, answer: Node, policy: Policy, work: Work) -> bool:
    """Return whether a policy accepts the value of an answer that does not equal the gold."""
    if policy.rounded_answer and is_rounded(gold, answer, work):
        return True
    return _rounds_to(gold, answer, policy, work) or are_close(gold, answer, policy, work)


def is_rounded(gold: Node, answer: Node, work: Work) -> bool:
    """Return whether an answer of six or more digits rounds an exact gold whose decimals never end."""
    gold, answer = _strip_same_unit(gold, answer)
    if not _is_decimal(answer) or not is_scalar(gold) or list_names(gold):
        return False
    value = answer.number if answer.kind == "number" else -answer.parts[0].number
    places = _count_decimals(value)
    if not places or abs(value) * 10**places < 10 ** (MIN_DIGITS - 1):
        return False
    try:
        exact = compute_rational(gold, work)
        if exact is not None:
            endless = exact.denominator > 1 and not _count_decimals(exact)
            return endless and 2 * abs(exact - value) * 10**places <= 1
        precision = Precision(max(DIGITS, places + 40), work)
        apart = Node("add", parts=(gold, negate(answer)))
        return bool(abs(precision.require_real(enclose(apart, precision))) * 2 * 10**places < 1)
    except (UndefinedError, UnreadableError, IndeterminateError, ZeroDivisionError):
        return False


def _strip_same_unit(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Return the values of two quantities in one unit, or of one quantity and a value whose unit is missing."""
    units = [node for node in (gold, answer) if node.kind == "unit"]
    if not units or any(node.name in NEVER_MISSING or node.parts[1:] != units[0].parts[1:] for node in units):
        return gold, answer
    if len({node.name for node in units}) > 1:
        return gold, answer
    return (gold.parts[0] if gold.kind == "unit" else gold), (answer.parts[0] if answer.kind == "unit" else answer)


def _count_decimals(value: Fraction) -> int:
    """Return the number of decimals of a value; zero if it is an integer or its decimals never end."""
    rest, counts = value.denominator, dict.fromkeys((2, 5), 0)
    for prime in counts:
        while rest % prime == 0 and counts[prime] < MAX_DECIMALS:
            rest //= prime
            counts[prime] += 1
    return max(counts.values()) if rest == 1 else 0


def _rounds_to(gold: Node, answer: Node, policy: Policy, work: Work) -> bool:
    """Return whether the exact answer rounds to the decimals of the gold answer."""
    if not policy.rounded_gold or gold.kind != "number" or gold.number.denominator == 1 or list_names(answer):
        return False
    places = next((count for count in range(1, 20) if (gold.number * 10**count).denominator == 1), 0)
    try:
        value = compute_rational(answer, work)
    except UndefinedError:
        return False
    return value is not None and places > 0 and abs(value - gold.number) <= Fraction(1, 2 * 10**places)


def are_close(gold: Node, answer: Node, policy: Policy, work: Work) -> bool:
    """Return whether a policy accepts a value in place of another one; with `hundredfold`, percent signs are ignored.

    Only decimal numbers are multiplied or divided by 100; an expression must be close without that.
    """
    if not (policy.hundredfold or policy.relative_tolerance):
        return False
    if policy.hundredfold:
        gold, answer = _drop_percent(gold), _drop_percent(answer)
    if not (is_scalar(gold) and is_scalar(answer)) or list_names(gold, answer):
        return False
    try:
        one, other = _compute_real(gold, work), _compute_real(answer, work)
    except (UndefinedError, UnreadableError):
        return False
    if one is None or other is None:
        return False
    if not isinstance(one, Fraction) or not isinstance(other, Fraction):
        return _is_within(_to_float(one), _to_float(other), policy.relative_tolerance)
    decimals = policy.hundredfold and _is_decimal(gold) and _is_decimal(answer)
    # The exact value of the tolerance as written: the float 1e-4 is slightly more than 1/10000.
    tolerance = Fraction(str(policy.relative_tolerance))
    return any(_is_within(one * factor, other, tolerance) for factor in (FACTORS if decimals else (1,)))


def _is_within(one: Any, other: Any, tolerance: Any) -> bool:
    return bool(abs(one - other) <= tolerance * max(abs(one), abs(other)))


def _to_float(value: Any) -> Any:
    arithmetic = get_context(DIGITS)
    return arithmetic.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _compute_real(node: Node, work: Work) -> Any:
    """Return the value of a constant, a Fraction if it is rational, else with sixty digits; None if it is not real."""
    exact = compute_rational(node, work)
    if exact is not None:
        return exact
    point = Point({}, 0, work)
    value, arithmetic = evaluate(node, point), point.arithmetic
    return arithmetic.re(value) if arithmetic.im(value) == 0 and arithmetic.isfinite(value) else None


def _is_decimal(node: Node) -> bool:
    """Return whether a value is written in digits, with or without a sign."""
    return node.kind == "number" or (node.kind == "negate" and node.parts[0].kind == "number")


def _drop_percent(node: Node) -> Node:
    return node.parts[0] if node.kind == "unit" and node.name == PERCENT else node
