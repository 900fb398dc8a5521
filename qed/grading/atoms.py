"""Parsers of the atoms of expressions: numbers, names, fractions, roots, brackets, absolute values, matrices."""

from __future__ import annotations

from fractions import Fraction

from qed.grading.bounds import MAX_BITS, MAX_POWER_OF_TEN, OverBoundError, UnreadableError
from qed.grading.cursor import Cursor, read_raw_argument
from qed.grading.environments import parse_environment
from qed.grading.tree import Node, make_number
from qed.grading.vocabulary import BIG, DECORATIONS, FUNCTIONS, LETTER_UNITS, SYMBOLS

OPENERS = {"(", "[", "{", "\\{"}
CLOSERS = {"(": (")", "]"), "[": ("]", ")"), "{": ("}",), "\\{": ("\\}",)}
PREFIXES = {"\\angle", "\\triangle"}
STARTING = (
    {"\\frac", "\\sqrt", "\\surd", "\\binom", "\\pi", "\\infty", "\\i", "\\lfloor", "\\lceil", "\\mathbb", "\\mathcal"}
    | OPENERS
    | FUNCTIONS
    | SYMBOLS
    | DECORATIONS
    | BIG
    | PREFIXES
)
ALWAYS_APPLIED = set("fgFG")
OFTEN_APPLIED = set("hpquvABCDEHIJKLMNOPQRSTUVWXYZ")
PROBABILITIES = {"P", "Pr", "Prob", "\\Pr", "\\mathbb P"}
EVENTS = {"=", "<", ">", "\\leq", "\\geq", "<=", ">=", "\\neq", "\\in", "\\cap", "\\cup"}  # signs of an event, in P(…)
INVERTED = ["^", "{", "-", "1", "}", "("]  # the inverse of a function
NUMBER_ENDS = ("\\overline", "\\dot")


def starts_atom(cursor: Cursor) -> bool:
    """Return whether an implicitly multiplied factor follows, with no sign before it."""
    token = cursor.peek()
    if token.kind == "letter":
        return not (cursor.letter_units and _is_unit(cursor))
    if token.kind == "number":  # (n-2) 2^n
        return cursor.peek(-1).text in {")", "}", "i", "!"} or (
            cursor.peek(-1).kind == "letter" and cursor.peek(1).text == "^"
        )
    if token.kind == "word":
        return token.text in {"e", "i"}
    if token.text == "|":
        return not cursor.bars
    if token.text.startswith("\\begin{"):
        return True
    return token.kind in {"sign", "command"} and token.text in STARTING


def _is_unit(cursor: Cursor) -> bool:
    """Return whether a letter directly after a number is a unit and not a name, because only units follow."""
    before, after = cursor.peek(-1), cursor.peek(1)
    follows_number = before.kind == "number" or before.text in {"}", ")", "\\pi"}
    return (
        follows_number and cursor.text in LETTER_UNITS and (after.kind in {"end", "letter"} or after.text in {"^", "/"})
    )


def parse_argument(cursor: Cursor) -> Node:
    """Parse the argument of a command: a group, or the single token that LaTeX takes without braces."""
    with cursor.nest():
        return parse_atom(cursor)


def parse_atom(cursor: Cursor) -> Node:
    """Parse one factor without its exponent.

    Raises:
        UnreadableError: no factor begins here.
    """
    token = cursor.peek()
    if token.kind == "number":
        return _parse_number(cursor)
    if token.kind in {"letter", "word"}:
        return _parse_name(cursor)
    if token.text in OPENERS:
        return _parse_group(cursor)
    if token.text == "|":
        return _parse_bars(cursor)
    if token.kind == "command":
        return _parse_command(cursor)
    raise UnreadableError(f"no expression begins with {token.text or 'nothing'}")


def parse_digits(text: str) -> Fraction:
    """Return the exact value of a number's digits.

    Raises:
        OverBoundError: the number is too long, which is checked before the value is computed.
    """
    mantissa, _, tens = text.lower().partition("e")
    if len(mantissa) > MAX_BITS // 10 or abs(int(tens or 0)) > MAX_POWER_OF_TEN:
        raise OverBoundError("a number is too long")
    integer, _, decimals = mantissa.partition(".")
    shift = int(tens or 0) - len(decimals)
    digits = int((integer + decimals) or "0")
    return Fraction(digits * 10**shift) if shift >= 0 else Fraction(digits, 10**-shift)


def _parse_number(cursor: Cursor) -> Node:
    text = cursor.take().text
    if "." in text and cursor.text in NUMBER_ENDS:
        return _parse_repeating(cursor, text)
    if cursor.text == "_":
        raise UnreadableError("a number with an index")
    return make_number(parse_digits(text))


def _parse_repeating(cursor: Cursor, text: str) -> Node:
    """Parse 0.1\\overline{23}, a repeating decimal; dots may mark the first and the last digit of the period."""
    dotted = cursor.take().text == "\\dot"
    digits = read_raw_argument(cursor).replace(" ", "")
    if dotted:
        digits += cursor.take().text if cursor.peek().kind == "number" and cursor.peek(1).text == "\\dot" else ""
        digits += read_raw_argument(cursor).replace(" ", "") if cursor.accept_any("\\dot") else ""
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 1000:
        raise UnreadableError("a line over something other than digits")
    decimals = len(text.partition(".")[2])
    tail = Fraction(int(digits), (10 ** len(digits) - 1) * 10**decimals)
    return make_number(parse_digits(text) + tail)


def _parse_name(cursor: Cursor) -> Node:
    token = cursor.take()
    name = token.text
    if name in {"e", "i"} and cursor.text not in {"_", "'"}:
        return Node("constant", name)
    if token.kind == "word" and len(name) > 1 and cursor.text not in {"=", "(", "_"}:
        raise UnreadableError(f"the word {name} in an expression")
    return _parse_indexed(cursor, name)


def _parse_indexed(cursor: Cursor, name: str) -> Node:
    """Parse a name with its index and primes, and its arguments in brackets if it is the name of a function."""
    letter = name
    if (probability := _parse_probability(cursor, name)) is not None:
        return probability
    while cursor.text in {"_", "'"}:
        name += cursor.text
        if cursor.take().text == "_":
            name += read_raw_argument(cursor)
    if cursor.text == "^" and cursor.peek(1).text in {"\\prime", "*"}:
        name += "^" + cursor.peek(1).text
        cursor.position += 2
    if letter in ALWAYS_APPLIED and [cursor.peek(ahead).text for ahead in range(6)] == INVERTED:
        name += "^-1"
        cursor.position += 5
    primed = name.endswith("'")
    if cursor.text == "(" and (primed or letter in ALWAYS_APPLIED or _takes_one_argument(cursor, letter)):
        inner = _parse_group(cursor)
        return Node("apply", name, inner.parts if inner.kind == "sequence" else (inner,))
    return Node("symbol", name)


def _parse_probability(cursor: Cursor, letter: str) -> Node | None:
    """Parse P(A|B), \\Pr[X = 1] and the like before an equals sign as one name."""
    if letter not in PROBABILITIES or cursor.text not in {"(", "["}:
        return None
    texts, depth = list[str](), 0
    while True:
        token = cursor.peek(len(texts))
        if token.kind == "end":
            return None
        depth += (token.text in OPENERS) - (token.text in {")", "]", "}", "\\}"})
        texts.append(token.text)
        if depth == 0:
            break
    if cursor.peek(len(texts)).text not in {"=", "\\approx"}:
        return None
    inner = texts[1:-1]
    if not (EVENTS & set(inner) or inner.count("|") == 1 or letter != "P"):  # P(x + 1) is a polynomial
        return None
    cursor.position += len(texts)
    if len(inner) == 1:
        return Node("apply", "P", (Node("symbol", inner[0]),))
    return Node("symbol", f"P({' '.join(inner)})")


def _takes_one_argument(cursor: Cursor, letter: str) -> bool:
    applied = letter in OFTEN_APPLIED or len(letter) > 1
    return (
        applied
        and cursor.peek(1).kind in {"number", "letter"}
        and cursor.peek(2).text in {")", ",", "=", "\\cup", "\\cap"}
    )


def _parse_group(cursor: Cursor) -> Node:
    opening = cursor.take().text
    bars, cursor.bars = cursor.bars, []
    with cursor.nest():
        if opening == "\\{" and cursor.accept_any("\\}"):
            cursor.bars = bars
            return Node("set")
        inner = cursor.parse_inner(cursor)
        if opening == "{" and cursor.text in {"\\over", "\\choose"}:
            inner = _parse_over(cursor, inner)
    closing = cursor.expect(*CLOSERS[opening])
    cursor.bars = bars
    if opening == "\\{":
        return _parse_set(inner)
    if opening == "{":
        return inner
    if inner.kind == "list":
        if inner.name != ",":
            raise UnreadableError("words in brackets")
        return Node("sequence", opening + closing, inner.parts)
    if CLOSERS[opening][0] != closing:
        raise UnreadableError("brackets of two kinds around one value")
    return inner


def _parse_over(cursor: Cursor, above: Node) -> Node:
    """Parse {a \\over b} and {n \\choose k}."""
    name = cursor.take().text
    parts = (above, cursor.parse_inner(cursor))
    return Node("divide", parts=parts) if name == "\\over" else Node("function", "\\binom", parts)


def _parse_set(inner: Node) -> Node:
    if inner.kind == "builder":
        return inner.parts[0]
    return Node("set", parts=inner.parts if inner.kind == "list" else (inner,))


def _parse_bars(cursor: Cursor) -> Node:
    cursor.take()
    with cursor.nest():
        cursor.bars.append(cursor.depth)
        inner = cursor.parse_inner(cursor)
        cursor.expect("|")
        cursor.bars.pop()
    if inner.kind == "matrix":
        return inner._replace(name="|")
    return Node("function", "\\abs", (inner,))


def _parse_command(cursor: Cursor) -> Node:
    name = cursor.take().text
    if name in {"\\frac", "\\binom"}:
        parts = (_parse_short_command(cursor), _parse_short_command(cursor))
        return Node("divide", parts=parts) if name == "\\frac" else Node("function", "\\binom", parts)
    if name in {"\\sqrt", "\\surd"}:
        return _parse_root(cursor)
    if name == "\\pi":
        return Node("constant", "pi")
    if name == "\\infty":
        return Node("constant", "infinity")
    if name == "\\i":
        return Node("constant", "i")
    if name in {"\\lfloor", "\\lceil"}:
        inner = cursor.parse_inner(cursor)
        cursor.expect("\\r" + name[2:])
        return Node("function", "\\floor" if name == "\\lfloor" else "\\ceil", (inner,))
    if name == "\\emptyset":
        return Node("set")
    return _parse_operator_name(cursor, name)


def _parse_operator_name(cursor: Cursor, name: str) -> Node:
    if name in SYMBOLS or name == "\\Pr":
        return _parse_indexed(cursor, name)
    if name in DECORATIONS or name in {"\\mathbb", "\\mathcal"}:
        return _parse_indexed(cursor, f"{name} {read_raw_argument(cursor).strip('{} ')}")
    if name in PREFIXES:
        while cursor.peek().kind == "letter":
            name += cursor.take().text
        return Node("symbol", name)
    if name in BIG:
        while cursor.text in {"_", "^"}:
            name += cursor.take().text + read_raw_argument(cursor)
        with cursor.nest():
            return Node("apply", name, (cursor.parse_inner(cursor),))
    if name.startswith("\\begin{"):
        return parse_environment(cursor, name[7:-1])
    raise UnreadableError(f"the command {name}")


def _parse_short_command(cursor: Cursor) -> Node:
    cursor.split_first_digit()
    return parse_argument(cursor)


def _parse_root(cursor: Cursor) -> Node:
    degree = make_number(2)
    if cursor.text == "[":
        cursor.take()
        degree = cursor.parse_inner(cursor)
        cursor.expect("]")
    return Node("function", "root", (parse_argument(cursor), degree))
