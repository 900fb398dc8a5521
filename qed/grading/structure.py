"""Whole answers: lists, relations, unions, ratios and quantities, around the expressions they are made of."""

from __future__ import annotations

from qed.grading.bounds import MOST_ITEMS, OverBoundError, UnreadableError
from qed.grading.cursor import Cursor
from qed.grading.expression import parse_expression
from qed.grading.tokens import Token
from qed.grading.tree import Node
from qed.grading.units import combine_quantities, parse_currency, parse_quantity
from qed.grading.vocabulary import RELATIONS

SETTING = {"\\cup": "or", "\\cap": "and", "\\setminus": "without"}
LISTING = {"\\or": "or", "\\land": "and", "\\cup": "or", "\\cap": "and"}  # x < 2 \\cup x > 3
NUMBERS = {"number", "negate", "divide", "constant"}
REALS = Node("symbol", "\\mathbb R")
NAMED_SETS = dict.fromkeys(("all real numbers", "all reals", "all real values", "set of all real numbers"), REALS)
NAMED_SETS |= dict.fromkeys(("real numbers", "set of real numbers", "reals"), REALS)
NAMED_SETS |= dict.fromkeys(("empty set", "null set"), Node("set"))
ROW_ENDS = ("\\\\", "\\end{", "&")  # a comma before the end of a row separates nothing
MODULO = {"\\pmod", "\\mod", "\\bmod", "mod"}
ENDING = {")", "]", "}", "\\}", "|", "&", "\\\\", "", ",", ";", "\\or", "\\land", "\\rfloor", "\\rceil", ":"}


def parse(tokens: list[Token], letter_units: bool = False) -> Node:
    """The one value that all of the tokens say."""
    cursor = Cursor(list(tokens), parse_listing, letter_units)
    node = parse_listing(cursor)
    if cursor.peek().kind != "end":
        raise UnreadableError(f"{cursor.text} was not expected")
    return node


def parse_listing(cursor: Cursor) -> Node:
    """Answers between semicolons, which are lists themselves where commas stand inside."""
    with cursor.nest():
        if builder := _parse_set_builder(cursor):
            return builder
        groups, joiner = [_parse_answers(cursor)], ","
        while cursor.text == ";":
            cursor.take()
            groups.append(_parse_answers(cursor))
    if len(groups) == 1:
        return groups[0]
    return Node("list", joiner, tuple(groups))


def _parse_answers(cursor: Cursor) -> Node:
    items, joiners = [parse_relation(cursor)], set()
    while (found := _read_separator(cursor)) is not None:
        joiners.add(found)
        items.append(parse_relation(cursor))
        if len(items) > MOST_ITEMS:
            raise OverBoundError("too many items")
    if len(items) == 1:
        return items[0]
    if joiners == {"and"} and (whole := combine_quantities(items)) is not None:
        return whole
    joiners -= {","} if len(joiners) > 1 else set()
    return Node("list", joiners.pop() if len(joiners) == 1 else ",", tuple(items))


def _read_separator(cursor: Cursor) -> str | None:
    """A comma, a word, or both: `a, b, and c`."""
    if cursor.text == "," and cursor.peek(1).text.startswith(ROW_ENDS):
        cursor.place += 1
        return None
    found = "," if cursor.accept_any(",") else None
    if cursor.peek().kind == "joiner":
        return cursor.take().text
    if cursor.text in LISTING:
        return LISTING[cursor.take().text]
    return found


def _parse_set_builder(cursor: Cursor) -> Node | None:
    """{x | x > 2} and {x ∈ ℝ : x > 2}: the condition is the set."""
    if cursor.place == 0 or cursor.peek(-1).text != "\\{" or cursor.peek().kind != "letter":
        return None
    ahead = 1
    if cursor.peek(1).text == "\\in":
        while cursor.peek(ahead).text in {"\\in", "\\mathbb", "{", "}"} or cursor.peek(ahead).kind == "letter":
            ahead += 1
    if cursor.peek(ahead).text not in {"|", ":"}:
        return None
    cursor.place += ahead + 1
    return Node("builder", parts=(_parse_answers(cursor),))


def parse_relation(cursor: Cursor) -> Node:
    """Sides with =, <, ≤, ≠ or ∈ between them; a single side is itself."""
    sides, signs = [_parse_side(cursor)], []
    while cursor.peek().kind != "end" and cursor.text in RELATIONS:
        signs.append(RELATIONS[cursor.take().text])
        sides.append(_parse_side(cursor))
    if signs == ["~"] and sides[0].kind in {"symbol", "text"}:  # x ≈ 11 says 11
        signs = ["="]
    if "~" in signs:  # what stands before the sign is exact
        place = signs.index("~")
        sides, signs = sides[: place + 1], signs[:place]
    return _build_relation(sides, signs)


def _build_relation(sides: list[Node], signs: list[str]) -> Node:
    """One relation. A chain says its first name and its last value, or the value of several names."""
    if not signs:
        return sides[0]
    if sides[-1].kind == "congruence" and signs == ["=="]:
        signs = ["="]
    if set(signs) == {"="} and len(sides) > 2:
        names = [side for side in sides[:-1] if side.kind in {"symbol", "text"}]
        if len(names) > 1:
            return Node("list", ",", tuple(Node("relation", "=", (name, sides[-1])) for name in names))
        sides, signs = [sides[0], sides[-1]], ["="]
    return Node("relation", " ".join(signs), tuple(sides))


def _parse_side(cursor: Cursor) -> Node:
    if cursor.text == "~" or (cursor.text in RELATIONS and RELATIONS[cursor.text] == "~"):
        cursor.take()
    if (words := _parse_words(cursor)) is not None:
        return words
    result = _parse_member(cursor)
    while cursor.text in SETTING and cursor.peek().kind != "end" and result.kind not in NUMBERS:
        result = Node("union", SETTING[cursor.take().text], (result, _parse_member(cursor)))
    return _parse_modulo(cursor, result)


def _parse_modulo(cursor: Cursor, value: Node) -> Node:
    """3 \\pmod 7 and 3 (mod 7)."""
    opened = cursor.text == "(" and cursor.peek(1).text == "mod"
    if not (opened or cursor.text in MODULO) or cursor.peek().kind == "end":
        return value
    cursor.place += 1 + opened
    result = Node("congruence", parts=(value, parse_expression(cursor)))
    if opened:
        cursor.expect(")")
    return result


def _parse_words(cursor: Cursor) -> Node | None:
    """A side that is words alone, as a text or as the name before an equals sign."""
    ahead = 0
    while cursor.peek(ahead).kind == "word":
        ahead += 1
    after = cursor.peek(ahead)
    if not ahead or (ahead == 1 and len(cursor.text) == 1):
        return None
    if (
        after.text not in ENDING
        and not after.text.startswith("\\end{")
        and after.text not in RELATIONS
        and after.kind != "joiner"
    ):
        return None
    words = " ".join(cursor.take().text.casefold() for _ in range(ahead))
    return NAMED_SETS.get(words.removeprefix("the "), Node("text", words))


def _parse_member(cursor: Cursor) -> Node:
    if (money := parse_currency(cursor)) is not None:
        return money
    first = parse_expression(cursor)
    if cursor.text == ":" and cursor.peek(1).kind != "end":
        first = _parse_ratio(cursor, first)
    return parse_quantity(cursor, first)


def _parse_ratio(cursor: Cursor, first: Node) -> Node:
    """3:4 and 12:05. The digits are kept: only two of them make minutes."""
    begin, parts = cursor.place - 1, [first]
    while cursor.accept_any(":"):
        parts.append(parse_expression(cursor))
    texts = [token.text for token in cursor.tokens[begin : cursor.place]]
    plain = len(texts) == 2 * len(parts) - 1 and all(part.kind == "number" and part.number >= 0 for part in parts)
    return Node("ratio", "".join(texts) if plain else "", tuple(parts))
