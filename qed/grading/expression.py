"""Sums, products and powers: the grammar of expressions, with implicit products."""

from __future__ import annotations

from fractions import Fraction

from qed.grading.atoms import parse_argument, parse_atom, starts_atom
from qed.grading.bounds import UnreadableError
from qed.grading.cursor import Cursor, read_raw_argument
from qed.grading.tree import Node, make_number, negate
from qed.grading.vocabulary import FUNCTIONS, ORDINALS

ADDING = {"+", "-", "\\pm", "\\mp"}
DEGREES = {"\\circ", "\\degrees"}


def parse_expression(cursor: Cursor) -> Node:
    """Parse a sum of products."""
    with cursor.nest():
        parts = [_parse_signed(cursor)]
        while cursor.text in ADDING:
            sign = cursor.take().text
            parts.append(_apply_sign(sign, parse_product(cursor, signed=True)))
    return parts[0] if len(parts) == 1 else Node("add", parts=tuple(parts))


def _parse_signed(cursor: Cursor) -> Node:
    if cursor.text in ADDING:
        sign = cursor.take().text
        return _apply_sign(sign, parse_product(cursor))
    return parse_product(cursor)


def _apply_sign(sign: str, node: Node) -> Node:
    if sign == "-":
        return negate(node)
    if sign == "+":
        return node
    return Node("plus_minus" if sign == "\\pm" else "minus_plus", parts=(node,))


def parse_product(cursor: Cursor, signed: bool = False) -> Node:
    """Parse a product from left to right, whose factors are adjacent or joined by a sign."""
    if signed and cursor.text in {"+", "-"}:
        return _apply_sign(cursor.take().text, parse_product(cursor))
    integer = _is_integer(cursor)
    result = parse_power(cursor)
    if integer and (mixed := _parse_mixed_number(cursor, result)) is not None:
        degrees = cursor.text == "\\degrees" or [cursor.peek(ahead).text for ahead in (0, 1)] == ["^", "\\circ"]
        cursor.position += degrees * (1 + (cursor.text == "^"))
        result = Node("degree", parts=(mixed,)) if degrees else mixed
    while True:
        if cursor.accept_any("*"):
            result = _multiply(result, _parse_factor(cursor))
        elif cursor.accept_any("/"):
            result = Node("divide", parts=(result, _parse_factor(cursor)))
        elif result.kind == "degree" and (cursor.text in {"C", "F"} or cursor.peek(1).text == "'"):
            return result
        elif starts_atom(cursor) and not starts_unit_fraction(cursor):
            result = _multiply(result, parse_power(cursor))
        else:
            return result


def starts_unit_fraction(cursor: Cursor) -> bool:
    """Return whether a fraction of words follows: miles over hours."""
    first = cursor.peek(2)
    return (
        cursor.text == "\\frac"
        and cursor.peek(1).text == "{"
        and first.kind == "word"
        and first.text.lower() not in {"e", "i"}
    )


def _multiply(left: Node, right: Node) -> Node:
    parts = left.parts if left.kind == "multiply" else (left,)
    return Node("multiply", parts=(*parts, right))


def _parse_factor(cursor: Cursor) -> Node:
    if cursor.text in {"+", "-"}:
        return _apply_sign(cursor.take().text, parse_power(cursor))
    return parse_power(cursor)


def _is_integer(cursor: Cursor) -> bool:
    token = cursor.peek()
    return token.kind == "number" and token.text.isdigit()


def _parse_mixed_number(cursor: Cursor, integer: Node) -> Node | None:
    """Parse 2\\frac13 and 2 1/3: an integer followed by a proper fraction is their sum."""
    if integer.kind != "number":
        return None
    if cursor.text == "\\frac":
        position, tokens = cursor.position, list(cursor.tokens)
        fraction = parse_atom(cursor)
        if fraction.kind == "divide" and (value := _find_proper_fraction(fraction.parts)) is not None:
            return make_number(integer.number + value)
        cursor.position, cursor.tokens = position, tokens
        return None
    above, slash, below = cursor.peek(), cursor.peek(1), cursor.peek(2)
    if above.kind == below.kind == "number" and above.spaced and slash.text == "/":
        if not (above.text.isdigit() and below.text.isdigit() and int(above.text) < int(below.text)):
            raise UnreadableError("two numbers side by side")
        cursor.position += 3
        return make_number(integer.number + Fraction(int(above.text), int(below.text)))
    return None


def _find_proper_fraction(parts: tuple[Node, ...]) -> Fraction | None:
    above, below = parts
    if above.kind == below.kind == "number" and above.number.denominator == below.number.denominator == 1:
        return above.number / below.number if 0 < above.number < below.number else None
    return None


def parse_power(cursor: Cursor) -> Node:
    """Parse an atom with its suffixes: exponents, factorials, degrees."""
    command = cursor.text
    if command in FUNCTIONS:
        return _parse_function(cursor)
    base = parse_atom(cursor)
    while cursor.text in {"^", "**", "!", "\\degrees"}:
        sign = cursor.take().text
        if sign == "!":
            base = Node("function", "!!" if cursor.accept_any("!") else "!", (base,))
        elif sign == "\\degrees":
            base = Node("degree", parts=(base,))
        else:
            base = _parse_raised(cursor, base)
    return base


def _parse_raised(cursor: Cursor, base: Node) -> Node:
    opened = cursor.text == "{"
    name = cursor.peek(opened).text
    if name == "o" and base.kind == "number":
        name = "\\circ"
    if name in DEGREES or name.lower() in ORDINALS:
        cursor.position += 1 + opened
        if opened:
            cursor.expect("}")
        if name in DEGREES:
            return Node("degree", parts=(base,))
        if base.kind != "number":
            raise UnreadableError("an ordinal of something other than a number")
        return base
    if base.kind == "symbol" and base.name.startswith("\\mathbb") and cursor.peek(opened + 1).text in {"}", ""}:
        return base._replace(name=f"{base.name} {read_raw_argument(cursor)}")  # ℝ⁺
    if name in {"'", "\\prime"}:
        raise UnreadableError("a prime after something other than a name")
    return Node("power", parts=(base, parse_exponent(cursor)))


def parse_exponent(cursor: Cursor) -> Node:
    """Parse an exponent: a group, or a signed atom; powers are right-associative."""
    with cursor.nest():
        if cursor.text in {"-", "+"}:
            return _apply_sign(cursor.take().text, parse_exponent(cursor))
        above = _parse_function(cursor) if cursor.text in FUNCTIONS else parse_atom(cursor)
        if cursor.text in {"^", "**"}:
            cursor.take()
            above = Node("power", parts=(above, parse_exponent(cursor)))
    return above


def _parse_function(cursor: Cursor) -> Node:
    """Parse sin x, sin²(x) or log_2 8; without brackets the argument is the product that follows."""
    name = cursor.take().text
    base: tuple[Node, ...] = ()
    raised: Node | None = None
    while cursor.text in {"^", "_", "**"}:
        if cursor.take().text == "_":
            base = (parse_argument(cursor),)
        else:
            raised = parse_exponent(cursor)
    bracketed = cursor.text in {"(", "["}
    with cursor.nest():
        arguments = _parse_arguments(cursor)
    if bracketed and raised is None and cursor.text in {"^", "**"}:  # sin(x)^2 is (sin x)^2
        cursor.take()
        raised = parse_exponent(cursor)
        return Node("power", parts=(Node("function", name, (*arguments, *base)), raised))
    if raised == make_number(-1) and name in {"\\sin", "\\cos", "\\tan", "\\cot", "\\sec", "\\csc"}:
        name, raised = "\\arc" + name[1:], None
    result = Node("function", name, (*arguments, *base))
    return result if raised is None else Node("power", parts=(result, raised))


def _parse_arguments(cursor: Cursor) -> tuple[Node, ...]:
    if cursor.text in {"(", "[", "{"}:
        inner = parse_atom(cursor)
        if inner.kind in {"sequence", "list"}:
            return inner.parts
        return (inner,)
    result = parse_power(cursor)
    while starts_atom(cursor) and cursor.text not in FUNCTIONS and cursor.text != "(":
        result = _multiply(result, parse_power(cursor))
    return (result,)
