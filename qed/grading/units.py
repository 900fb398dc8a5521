"""Parser of quantities: a number with units, a currency, percent or degrees before or after it."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from qed.grading.atoms import parse_digits
from qed.grading.bounds import UnreadableError
from qed.grading.cursor import Cursor
from qed.grading.expression import parse_expression, starts_unit_fraction
from qed.grading.spoken import DENOMINATORS
from qed.grading.tokens import PREFIXED, Token
from qed.grading.tree import Node, make_number, negate
from qed.grading.vocabulary import (
    ARTICLES,
    CHANGING,
    LETTER_UNITS,
    MEASURED,
    MULTIPLES,
    NO_UNITS,
    NUMBER_WORDS,
    ORDINALS,
    PHRASES,
    POWERS,
    RATES,
    SYMBOL_UNITS,
    UNITS,
)

CURRENCIES = frozenset("$€£¥₹")
MAX_UNIT_WORDS = 6  # words
MAX_NOUNS = 4  # in a row
CHANGES = set("increase decrease discount profit loss gain more less off higher lower chance".split())  # noqa: SIM905
# 5 thirds are a fraction; quarters are coins.
PARTS = {word: part for word, part in DENOMINATORS.items() if word.endswith("s") and word != "quarters"}
PARTS |= {"hundredths": Fraction(1, 100), "thousandths": Fraction(1, 1000)}
SCALES = {"c": "celsius", "f": "fahrenheit", "celsius": "celsius", "fahrenheit": "fahrenheit"}

BARE = "unit"  # the name of square and cubic units without another name


def attach_unit(node: Node, name: str, factor: Fraction | int = 1) -> Node:
    """Build a value with a unit, given the name of the dimension and the factor to its base unit."""
    return Node("unit", name, (node, make_number(factor)))


def parse_currency(cursor: Cursor) -> Node | None:
    """Parse $5 and -$5; None if no currency follows."""
    if cursor.peek().kind == "word" and cursor.text.lower() in PREFIXED and cursor.peek(1).kind == "number":
        name, factor = UNITS[cursor.take().text.lower()]
        return attach_unit(parse_expression(cursor), name, factor)
    sign = cursor.text == "-" and cursor.peek(1).text in CURRENCIES
    if not (sign or cursor.text in CURRENCIES):
        return None
    cursor.position += sign
    symbol = cursor.take().text
    name, factor = UNITS[symbol]
    value, _ = _parse_multiplier(cursor, parse_expression(cursor))
    cursor.accept_any(symbol)  # $42$, whose signs were escaped
    if cursor.peek().kind == "word":  # $5 per hour, $5 USD
        rate = cursor.text.lower() in {"per", "each"}  # the unit that the price is for counts as missing
        inner = parse_quantity(cursor, value, priced=True)
        if not rate and inner.kind == "unit" and inner.name != name:
            raise UnreadableError("two units")
    return attach_unit(negate(value) if sign else value, name, factor)


def parse_quantity(cursor: Cursor, value: Node, priced: bool = False) -> Node:
    """Parse the units after a value, if there are any; `3 hours 20 minutes` is one quantity.

    Args:
        cursor: the position after the value.
        value: the number.
        priced: whether a currency stands before it: $5 per thousand is a price; 5 per thousand, a number, is refused.

    Raises:
        UnreadableError: a word is not a unit.
    """
    if value.kind == "degree" or (value.kind == "negate" and value.parts[0].kind == "degree"):
        return _parse_degrees(cursor, value)
    value, counted = _parse_multiplier(cursor, value)
    if cursor.accept_any("%"):
        return _parse_change(cursor, attach_unit(value, "percent"))
    if cursor.text in CURRENCIES:
        return attach_unit(value, *UNITS[cursor.take().text])
    if not priced and cursor.text.lower() == "per" and cursor.peek(1).text.lower() in MULTIPLES.keys() - {"dozen"}:
        raise UnreadableError("a number per another number")
    unit = _parse_unit(cursor)
    if unit is None or unit[0] == "ordinal":
        return value
    if value.kind in {"sequence", "set", "list", "matrix"} and not counted:
        raise UnreadableError("units after a structure")
    result = attach_unit(value, *unit)
    return _parse_compound(cursor, result) if cursor.peek().kind == "number" else result


def _parse_change(cursor: Cursor, percent: Node) -> Node:
    """Keep the word `increase` of a 20 % increase as a third part: it equals 20 %, but not a 20 % decrease."""
    if cursor.peek().kind == "word" and cursor.text.lower() in CHANGES:
        return percent._replace(parts=(*percent.parts, Node("text", cursor.take().text.lower())))
    return percent


def _parse_degrees(cursor: Cursor, value: Node) -> Node:
    inner = negate(value.parts[0].parts[0]) if value.kind == "negate" else value.parts[0]
    if (scale := _read_scale(cursor)) is not None:
        return attach_unit(inner, scale)
    for part in (60, 3600):  # 10° 30' 15''
        if cursor.peek().kind == "number" and cursor.peek(1).text == "'" and inner.kind in {"number", "add"}:
            minutes = Node("divide", parts=(make_number(parse_digits(cursor.take().text)), make_number(part)))
            inner = Node("add", parts=(inner, minutes))
            while cursor.accept_any("'"):
                pass
    return attach_unit(inner, "degree")


def _read_scale(cursor: Cursor) -> str | None:
    """Read the scale of a temperature after its degrees: C, F, Celsius, Fahrenheit."""
    scale = SCALES.get(cursor.text.lower()) if cursor.peek().kind in {"letter", "word"} else None
    cursor.position += scale is not None
    return scale


def _parse_multiplier(cursor: Cursor, value: Node) -> tuple[Node, bool]:
    counted = False
    while cursor.peek().kind == "word" and cursor.text.lower() in MULTIPLES and value.kind in {"number", "multiply"}:
        value = Node("multiply", parts=(value, make_number(MULTIPLES[cursor.take().text.lower()])))
        counted = True
    if cursor.peek().kind == "word" and cursor.text.lower() in PARTS and value.kind == "number":
        value = Node("multiply", parts=(value, make_number(PARTS[cursor.take().text.lower()])))
    return value, counted


def _parse_compound(cursor: Cursor, first: Node) -> Node:
    result = combine_quantities([first, parse_quantity(cursor, parse_expression(cursor))])
    if result is None:
        raise UnreadableError("two quantities side by side")
    return result


def combine_quantities(items: list[Node]) -> Node | None:
    """Combine 3 hours and 20 minutes: quantities of one dimension, each in a smaller unit, are one quantity."""
    if not all(item.kind == "unit" and item.name == items[0].name and item.name for item in items):
        return None
    factors = [item.parts[1].number for item in items]
    if not all(large > small for large, small in pairwise(factors)):
        return None
    return attach_unit(Node("add", parts=tuple(Node("multiply", parts=item.parts) for item in items)), items[0].name)


def _parse_unit(cursor: Cursor) -> tuple[str, Fraction] | None:
    """Parse the units that follow, as in cm², m/s^2, miles per hour, students; return their dimension and factor."""
    powers: dict[str, int] = {}
    factor, sign, power, words = Fraction(1), 1, 1, 0
    _flatten_fraction(cursor)
    while not _ends_in_each(cursor) and (name := _read_word(cursor)) is not None:
        words += 1
        if words > MAX_UNIT_WORDS:
            raise UnreadableError("too many words after a number")
        if name in PHRASES and powers:
            _skip_phrase(cursor)
        elif name == "per":
            sign = -1
        elif name in POWERS:
            power = POWERS[name]
        else:
            scale = _read_scale(cursor) if name in {"degree", "degrees"} else None
            factor *= _multiply_unit(powers, scale or name, sign * power * _read_exponent(cursor))
            power, sign = 1, _read_division(cursor, sign)
    if not words:
        return None
    if powers.get("") == 1:
        del powers[""]
    return " ".join(
        f"{name or BARE}^{count}" if count != 1 and name[:3] != "of " else name
        for name, count in sorted(powers.items())
        if count
    ), factor


def _ends_in_each(cursor: Cursor) -> bool:
    """Skip the word `each` at the end, as in 12 each and $12 each, and return whether it was there."""
    ends = cursor.peek().kind == "word" and cursor.peek(1).kind not in {"word", "letter", "number"}
    return ends and cursor.accept_any("each")


def _flatten_fraction(cursor: Cursor) -> None:
    """Rewrite a fraction of miles over hours as miles / hours."""
    if not starts_unit_fraction(cursor):
        return
    tokens, index, marks = cursor.tokens, cursor.position, list[int]()
    while len(marks) < 4 and index < len(tokens):
        if tokens[index].text in {"{", "}"} and tokens[index - 1].text != "^" and not _closes_exponent(tokens, index):
            marks.append(index)
        index += 1
    if len(marks) == 4:
        above, below = tokens[marks[0] + 1 : marks[1]], tokens[marks[2] + 1 : marks[3]]
        cursor.tokens = [*tokens[: cursor.position], *above, Token("sign", "/"), *below, *tokens[marks[3] + 1 :]]


def _closes_exponent(tokens: list[Token], index: int) -> bool:
    return tokens[index].text == "}" and any(
        [one.text for one in tokens[index - back : index - back + 2]] == ["^", "{"] for back in (3, 4)
    )


def _skip_phrase(cursor: Cursor) -> None:
    """Skip a phrase such as `in the class`: words alone, and none that could change the number."""
    words = 0
    while cursor.peek().kind == "word":
        word = cursor.take().text.lower()
        words += 1
        if words > MAX_UNIT_WORDS or word in NUMBER_WORDS or (word in NO_UNITS and word not in ARTICLES | PHRASES):
            raise UnreadableError(f"{word} is not a unit")
    if not words:
        raise UnreadableError("a phrase without words")


def _read_division(cursor: Cursor, sign: int) -> int:
    """Return the sign of the exponents that follow: negative after a slash."""
    if cursor.accept_any("/"):
        if cursor.text == "(" and ")" in (closing := [token.text for token in cursor.tokens[cursor.position :]]):
            cursor.tokens = [
                token
                for index, token in enumerate(cursor.tokens)
                if index not in {cursor.position, cursor.position + closing.index(")")}
            ]
        return -1
    if cursor.text == "*" and cursor.peek(1).kind == "word":
        cursor.take()
    return sign


def _read_word(cursor: Cursor) -> str | None:
    token = cursor.peek()
    if token.kind == "letter" and cursor.letter_units and token.text in LETTER_UNITS:
        return cursor.take().text if token.text in SYMBOL_UNITS else cursor.take().text.lower()
    if token.kind != "word":
        return None
    if token.text.isupper() and len(token.text) > 3:
        raise UnreadableError(f"{token.text} is not a unit")
    name = cursor.take().text
    return name if name in SYMBOL_UNITS else name.lower()


def is_chinese(word: str) -> bool:
    """Return whether a word is written in Chinese characters."""
    return "一" <= word[:1] <= "鿿"


def _add_counted_noun(powers: dict[str, int], name: str) -> None:
    """Add a counted noun; only the last of several counts, as in large red apples."""
    if name in MEASURED and powers:
        return
    counted = [noun for noun in powers if noun.startswith("of ")]
    if (
        name in NO_UNITS
        or name in NUMBER_WORDS
        or not (1 if is_chinese(name) else 3) <= len(name) <= 20
        or (is_chinese(name) and name[0] in CHANGING)
        or not name.isalpha()
        or powers.get(f"of {name}")
    ):
        raise UnreadableError(f"{name} is not a unit")
    before = powers.pop(counted[0]) if counted else 0
    if before == MAX_NOUNS:
        raise UnreadableError("too many words after a number")
    powers["of " + name.removesuffix("s")] = before + 1


def _read_exponent(cursor: Cursor) -> int:
    if not (cursor.text in {"^", "**"} and cursor.peek().kind == "sign"):
        return 1
    cursor.take()
    braces = cursor.accept_any("{")
    sign = -1 if cursor.accept_any("-") else 1
    token = cursor.take()
    if token.kind != "number" or not token.text.isdigit() or len(token.text) > 1:
        raise UnreadableError("an exponent of a unit is not a digit")
    if braces:
        cursor.expect("}")
    return sign * int(token.text)


def _multiply_unit(powers: dict[str, int], name: str, count: int) -> Fraction:
    """Multiply the product of units by one more, and return its factor to the base unit of its dimension."""
    if name in RATES:
        above, below = RATES[name]
        return _multiply_unit(powers, above, count) * _multiply_unit(powers, below, -count)
    unit = SYMBOL_UNITS.get(name) or UNITS.get(name) or UNITS.get(name.removesuffix("s"))
    if name in ORDINALS:
        powers["ordinal"] = 1
        return Fraction(1)
    if unit is None:
        _add_counted_noun(powers, name)
        return Fraction(1)
    dimension, factor = unit
    powers[dimension] = powers.get(dimension, 0) + count
    return factor**count
