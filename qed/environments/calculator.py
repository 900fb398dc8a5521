"""A calculator: computes an expression between <calculator> tags exactly and tells the policy its value."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import ClassVar

from qed.environments.base import Environment, Message, Reply, State
from qed.environments.tags import find_call, make_tags, wrap_result
from qed.types import Problem

TEXT = (
    "You may use a calculator: write an expression with numbers, + - * / ** and parentheses between <calculator> and "
    "</calculator>, and its value is told to you between <result> and </result>."
)
LONGEST = 200  # maximum number of characters in an expression
MOST_DIGITS = 300  # in the numerator and in the denominator of any value
SHOWN_DIGITS = 12  # for a value without a short decimal form
SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**", ",": None, "_": None, "$": None})
ROOM = 10**MOST_DIGITS
WRITTEN = re.compile(r"[0-9.+\-*/%() ]*")  # only these characters reach Python's parser
ONLY = "only numbers, + - * / ** and parentheses can be computed"

Operation = Callable[[Fraction, Fraction], Fraction]
OPERATIONS: dict[type[ast.operator], Operation] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
}


class _CalculationError(Exception):
    """Raised when the calculator cannot compute an expression; the text says why."""


@dataclass(frozen=True)
class Calculator(Environment):
    """Computes the expression at the end of a turn."""

    max_turns: int = 9
    """The maximum number of policy turns in an answer; each but the last may call the tool once."""
    instruction: str = TEXT
    """The system message before the question; empty for none."""

    stop: ClassVar[tuple[str, ...]] = ("</calculator>",)
    reply_tags: ClassVar[tuple[str, str] | None] = make_tags("result")

    def start(self, problem: Problem) -> Sequence[Message]:
        """Explain the tool, then ask the question."""
        explained = [{"role": "system", "content": self.instruction}] if self.instruction else []
        return [*explained, *super().start(problem)]

    def step(self, state: State) -> Reply | None:
        """Compute the expression; a turn without one, or with an end token after it, ends the answer."""
        expression = None if state.ended else find_call(state.turns[-1], "calculator")
        return None if expression is None else Reply(wrap_result("result", calculate(expression)))


def calculate(expression: str) -> str:
    """Compute an expression exactly, and return its value or an error text."""
    text = expression.translate(SIGNS).strip()
    if len(text) > LONGEST:
        return f"error: an expression may have at most {LONGEST} characters"
    if not WRITTEN.fullmatch(text):
        return f"error: {ONLY}"
    try:
        return format_value(_compute(ast.parse(text, mode="eval").body, text))
    except _CalculationError as error:
        return f"error: {error}"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "error: this is not an expression"


def format_value(value: Fraction) -> str:
    """Return a value as a decimal number: exact if it has a short form, else with 12 significant digits."""
    if value.denominator == 1:
        return str(value.numerator)
    scaled = value * 10**SHOWN_DIGITS
    if scaled.denominator == 1:
        sign, digits = "-" if scaled < 0 else "", str(abs(scaled.numerator)).rjust(SHOWN_DIGITS + 1, "0")
        return f"{sign}{digits[:-SHOWN_DIGITS]}.{digits[-SHOWN_DIGITS:].rstrip('0')}"
    with localcontext(prec=SHOWN_DIGITS):
        return str(Decimal(value.numerator) / Decimal(value.denominator))


def _compute(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):  # read it from the text, because a float is not exact
            return Fraction(ast.get_source_segment(text, node) or "")
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _compute(operand, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute(operand, text)
        case ast.BinOp(left=left, op=sign, right=right):
            return _combine(sign, _compute(left, text), _compute(right, text))
    raise _CalculationError(ONLY)


def _combine(sign: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    if isinstance(sign, ast.Pow):
        return _raise_to(left, right)
    try:
        return _limit(OPERATIONS[type(sign)](left, right))
    except ZeroDivisionError:
        raise _CalculationError("division by zero") from None


def _raise_to(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _CalculationError("an exponent must be a whole number")
    if base == 0 and exponent < 0:
        raise _CalculationError("division by zero")
    digits = max(len(str(abs(base.numerator))), len(str(base.denominator))) - 1
    # A one-digit base can have a large power too: 2 ** 900 has 271 digits.
    if abs(exponent) * max(digits, 0.3) > MOST_DIGITS and abs(base) != 1 and base != 0:
        raise _CalculationError("the value is too long")
    return _limit(base ** int(exponent)) if abs(base) != 1 else base ** int(exponent % 2)


def _limit(value: Fraction) -> Fraction:
    if abs(value.numerator) >= ROOM or value.denominator >= ROOM:
        raise _CalculationError("the value is too long")
    return value


environment = Calculator()
