"""Values of constant expressions with a proven bound on their error, at any precision."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from qed.grading.balls import (
    EXACT,
    Enclosure,
    IndeterminateError,
    Precision,
    add_balls,
    enclose_number,
    exponentiate_ball,
    invert_ball,
    multiply_balls,
    raise_ball,
    take_logarithm,
)
from qed.grading.bounds import MAX_EXPONENT, MAX_FACTORIAL, UnreadableError
from qed.grading.exact import UndefinedError, compute_rational
from qed.grading.tree import Node

MAX_GAMMA_BITS = 2_000


def enclose(node: Node, precision: Precision) -> Enclosure:
    """Compute an enclosure of the value of a constant expression.

    Raises:
        IndeterminateError: more precision is needed, or no precision suffices.
        UndefinedError: it has no value.
        UnreadableError: it contains a node without a numeric value.
        OverBoundError: it needs too much work.
    """
    precision.work.spend(precision.cost)
    ball = _enclose_node(node, precision)
    if node.kind == "number":
        precision.depth += 2 * (node.number.numerator.bit_length() + node.number.denominator.bit_length())
    elif ball.value != 0:
        precision.depth += 2 * abs(precision.measure(ball.value))
    return ball


def _enclose_node(node: Node, precision: Precision) -> Enclosure:
    kind = node.kind
    if kind == "number":
        return enclose_number(node.number, precision)
    if kind == "constant":
        return _enclose_constant(node.name, precision)
    if kind == "turn":
        return _enclose_turn(node, precision)
    if kind == "power":
        return _enclose_power(node, precision)
    if kind == "function" and node.name in {"!", "!!", "\\binom", "\\gcd", "\\lcm"}:
        value = compute_rational(node, precision.work)
        if value is not None:
            return enclose_number(value, precision)
    if kind not in RULES:
        raise UnreadableError(f"a {kind} has no value")
    return RULES[kind](node, [enclose(part, precision) for part in node.parts], precision)


def _enclose_constant(name: str, precision: Precision) -> Enclosure:
    arithmetic = precision.arithmetic
    if name == "i":
        return Enclosure(arithmetic.mpc(0, 1), EXACT)
    if name not in {"pi", "e"}:
        raise UndefinedError("infinity in an expression")
    return precision.enclose(+arithmetic.pi if name == "pi" else +arithmetic.e, EXACT)


def _enclose_turn(node: Node, precision: Precision) -> Enclosure:
    """Enclose the sine or the cosine of a rational multiple of π; exact where the value is 0, ±1 or ±1/2."""
    number = node.number % 2
    angle = precision.arithmetic.mpf(number.numerator) / number.denominator
    rule = precision.arithmetic.sinpi if node.name == "\\sin" else precision.arithmetic.cospi
    if number.denominator <= 2:
        return Enclosure(precision.arithmetic.mpf(round(float(rule(angle)))), EXACT)
    return precision.enclose(rule(angle), 2 - precision.bits)


def _multiply_all(balls: list[Enclosure], precision: Precision) -> Enclosure:
    result = balls[0]
    for ball in balls[1:]:
        result = multiply_balls(result, ball, precision)
    return result


def _enclose_power(node: Node, precision: Precision) -> Enclosure:
    base = enclose(node.parts[0], precision)
    try:
        exponent = compute_rational(node.parts[1], precision.work)
    except UndefinedError:
        exponent = None
    if exponent is not None:
        return raise_ball(base, exponent, precision)
    above = multiply_balls(enclose(node.parts[1], precision), take_logarithm(base, precision), precision)
    return exponentiate_ball(above, precision)


def _evaluate_function(node: Node, balls: list[Enclosure], precision: Precision) -> Enclosure:
    precision.work.spend(4 * precision.cost * precision.cost)
    name = node.name
    if name == "root":
        degree = compute_rational(node.parts[1], precision.work)
        if degree is None or degree == 0:
            raise UndefinedError("an invalid degree of a root")
        return raise_ball(balls[0], 1 / degree, precision)
    if name in {"\\log", "\\ln"} and len(balls) <= 2:
        base = balls[1:] or ([enclose_number(Fraction(10), precision)] if name == "\\log" else [])
        parts = [take_logarithm(ball, precision) for ball in (balls[0], *base)]
        return multiply_balls(parts[0], invert_ball(parts[1], precision), precision) if base else parts[0]
    if name in {"\\max", "\\min"}:
        values = [precision.require_real(ball) for ball in balls]
        return Enclosure((max if name == "\\max" else min)(values), max(ball.error for ball in balls))
    if len(balls) != 1 or name not in ONE_ARGUMENT:
        raise UnreadableError(f"unknown function {name}")
    return ONE_ARGUMENT[name](balls[0], precision)


def _enclose_wave(name: str) -> Callable[[Enclosure, Precision], Enclosure]:
    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        if ball.error > 0 or (not precision.is_real(ball) and abs(ball.value.imag) > MAX_EXPONENT):
            raise IndeterminateError("an angle is too uncertain")
        slope = 0 if precision.is_real(ball) else int(2 * abs(ball.value.imag)) + 1
        value = getattr(precision.arithmetic, name)(ball.value)
        return precision.enclose(value, max(ball.error + slope, slope - precision.bits))

    return rule


def _enclose_arc(name: str) -> Callable[[Enclosure, Precision], Enclosure]:
    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        value = precision.require_real(ball)
        gap = 1 - abs(value)
        spread = max(ball.error, -precision.bits)
        if precision.measure(gap) <= spread + 2:  # at ±1, where the slope is infinite
            value = min(max(value, precision.arithmetic.mpf(-1)), precision.arithmetic.mpf(1))
            error = spread // 2 + 3
        elif gap < 0:
            raise UndefinedError("an inverse sine or cosine of a value above one")
        else:
            error = spread + max(0, 2 - precision.measure(gap)) // 2 + 1
        return precision.enclose(getattr(precision.arithmetic, name)(value), error)

    return rule


def _enclose_step(name: str) -> Callable[[Enclosure, Precision], Enclosure]:
    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        value, round_off = precision.require_real(ball), getattr(precision.arithmetic, name)
        radius = precision.arithmetic.ldexp(1, max(ball.error, -precision.bits)) if ball.error > EXACT else 0
        if ball.error > 0 or round_off(value - radius) != round_off(value + radius):
            raise IndeterminateError("a value is too close to a step")
        return Enclosure(round_off(value), EXACT)

    return rule


def _enclose_gamma(ball: Enclosure, precision: Precision) -> Enclosure:
    value = precision.require_real(ball)
    if not -0.75 < value < MAX_FACTORIAL or ball.error > -8 or precision.bits > MAX_GAMMA_BITS:
        raise IndeterminateError("a factorial is too large or too uncertain")
    result = precision.arithmetic.gamma(value + 1)
    return precision.enclose(result, precision.measure(result) + max(ball.error, -precision.bits) + 5)


def _combine_exponentials(sign: int, divided: bool = False) -> Callable[[Enclosure, Precision], Enclosure]:
    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        up, down = (exponentiate_ball(Enclosure(way * ball.value, ball.error), precision) for way in (1, -1))
        half = enclose_number(Fraction(1, 2), precision)
        total = add_balls([up, Enclosure(sign * down.value, down.error)], precision)
        below = invert_ball(add_balls([up, down], precision), precision) if divided else half
        return multiply_balls(total, below, precision)

    return rule


def _compose(outer: Callable[..., Enclosure], *inner: Callable[..., Enclosure]) -> Callable[..., Enclosure]:
    """Return the quotient of two rules, or the reciprocal of one."""

    def rule(ball: Enclosure, precision: Precision) -> Enclosure:
        below = invert_ball(outer(ball, precision), precision)
        return multiply_balls(inner[0](ball, precision), below, precision) if inner else below

    return rule


_SIN, _COS = _enclose_wave("sin"), _enclose_wave("cos")
ONE_ARGUMENT: dict[str, Callable[[Enclosure, Precision], Enclosure]] = {
    "\\sin": _SIN,
    "\\cos": _COS,
    "\\tan": _compose(_COS, _SIN),
    "\\cot": _compose(_SIN, _COS),
    "\\sec": _compose(_COS),
    "\\csc": _compose(_SIN),
    "\\arcsin": _enclose_arc("asin"),
    "\\arccos": _enclose_arc("acos"),
    "\\arctan": lambda ball, precision: precision.enclose(
        precision.arithmetic.atan(precision.require_real(ball)), ball.error
    ),
    "\\arccot": lambda ball, precision: precision.enclose(
        precision.arithmetic.pi / 2 - precision.arithmetic.atan(precision.require_real(ball)),
        max(ball.error, 2 - precision.bits),
    ),
    "\\sinh": _combine_exponentials(-1),
    "\\cosh": _combine_exponentials(1),
    "\\tanh": _combine_exponentials(-1, divided=True),
    "\\exp": exponentiate_ball,
    "\\cis": lambda ball, precision: exponentiate_ball(
        Enclosure(precision.arithmetic.mpc(0, 1) * ball.value, ball.error), precision
    ),
    "\\abs": lambda ball, precision: (
        Enclosure(abs(ball.value), ball.error)
        if precision.is_real(ball)
        else precision.enclose(abs(ball.value), ball.error)
    ),
    "\\cbrt": lambda ball, precision: raise_ball(ball, Fraction(1, 3), precision),
    "\\floor": _enclose_step("floor"),
    "\\ceil": _enclose_step("ceil"),
    "!": _enclose_gamma,
}
RULES: dict[str, Callable[[Node, list[Enclosure], Precision], Enclosure]] = {
    "add": lambda _, balls, precision: add_balls(balls, precision),
    "multiply": lambda _, balls, precision: _multiply_all(balls, precision),
    "divide": lambda _, balls, precision: multiply_balls(balls[0], invert_ball(balls[1], precision), precision),
    "ratio": lambda _, balls, precision: multiply_balls(balls[0], invert_ball(balls[1], precision), precision),
    "negate": lambda _, balls, __: Enclosure(-balls[0].value, balls[0].error),
    "degree": lambda _, balls, precision: _multiply_all(
        [balls[0], _enclose_constant("pi", precision), enclose_number(Fraction(1, 180), precision)], precision
    ),
    "function": _evaluate_function,
}
