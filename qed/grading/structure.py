"""Whole answers: lists, relations, unions, ratios and quantities, around the expressions they are made of."""

from __future__ import annotations

from qed.grading.bounds import MOST_ITEMS, OverBoundError, UnreadableError
from qed.grading.cursor import Cursor
from qed.grading.expression import expression
from qed.grading.tokens import Token
from qed.grading.tree import Node
from qed.grading.units import compounded, currency, quantity
from qed.grading.vocabulary import RELATIONS

SETTING = {"\\cup": "or", "\\cap": "and", "\\setminus": "without"}
SEPARATORS = {",", ";"}
LISTING = {"\\or": "or", "\\land": "and"}
ENDING = {")", "]", "}", "\\}", "|", "&", "\\\\", "", ",", ";", "\\or", "\\land", "\\rfloor", "\\rceil", ":"}


def parse(tokens: list[Token], letter_units: bool = False) -> Node:
    """The one value that all of the tokens say."""
    cursor = Cursor(list(tokens), listing, letter_units)
    node = listing(cursor)
    if cursor.look().kind != "end":
        raise UnreadableError(f"{cursor.text} was not expected")
    return node


def listing(cursor: Cursor) -> Node:
    """Answers between semicolons, which are lists themselves where commas stand inside."""
    with cursor.deeper():
        if builder := _builder(cursor):
            return builder
        groups, joiner = [_answers(cursor)], ","
        while cursor.text == ";":
            cursor.take()
            groups.append(_answers(cursor))
    if len(groups) == 1:
        return groups[0]
    return Node("list", joiner, tuple(groups))


def _answers(cursor: Cursor) -> Node:
    items, joiners = [relation(cursor)], set()
    while (found := _separator(cursor)) is not None:
        joiners.add(found)
        items.append(relation(cursor))
        if len(items) > MOST_ITEMS:
            raise OverBoundError("too many items")
    if len(items) == 1:
        return items[0]
    if joiners == {"and"} and (whole := compounded(items)) is not None:
        return whole
    joiners -= {","} if len(joiners) > 1 else set()
    return Node("list", joiners.pop() if len(joiners) == 1 else ",", tuple(items))


def _separator(cursor: Cursor) -> str | None:
    """A comma, a word, or both: `a, b, and c`."""
    found = "," if cursor.accept(",") else None
    if cursor.look().kind == "joiner":
        return cursor.take().text
    if cursor.text in LISTING:
        return LISTING[cursor.take().text]
    return found


def _builder(cursor: Cursor) -> Node | None:
    """{x | x > 2} and {x ∈ ℝ : x > 2}: the condition is the set."""
    if cursor.place == 0 or cursor.look(-1).text != "\\{" or cursor.look().kind != "letter":
        return None
    ahead = 1
    if cursor.look(1).text == "\\in":
        while cursor.look(ahead).text in {"\\in", "\\mathbb", "{", "}"} or cursor.look(ahead).kind == "letter":
            ahead += 1
    if cursor.look(ahead).text not in {"|", ":"}:
        return None
    cursor.place += ahead + 1
    return Node("builder", parts=(_answers(cursor),))


def relation(cursor: Cursor) -> Node:
    """Sides with =, <, ≤, ≠ or ∈ between them; a single side is itself."""
    sides, signs = [_side(cursor)], []
    while cursor.look().kind != "end" and cursor.text in RELATIONS:
        signs.append(RELATIONS[cursor.take().text])
        sides.append(_side(cursor))
    if not signs:
        return sides[0]
    if "~" in signs:  # what stands before the sign is exact
        place = signs.index("~")
        sides, signs = sides[: place + 1], signs[:place]
        if not signs:
            return sides[0]
    if set(signs) == {"="} and len(sides) > 2:  # a chain says its first name and its last value
        sides, signs = [sides[0], sides[-1]], ["="]
    return Node("relation", " ".join(signs), tuple(sides))


def _side(cursor: Cursor) -> Node:
    if cursor.text == "~" or (cursor.text in RELATIONS and RELATIONS[cursor.text] == "~"):
        cursor.take()
    if (words := _words(cursor)) is not None:
        return words
    result = _member(cursor)
    while cursor.text in SETTING and cursor.look().kind != "end":
        result = Node("union", SETTING[cursor.take().text], (result, _member(cursor)))
    return result


def _words(cursor: Cursor) -> Node | None:
    """A side that is words alone, as a text or as the name before an equals sign."""
    ahead = 0
    while cursor.look(ahead).kind == "word":
        ahead += 1
    after = cursor.look(ahead)
    if not ahead or (ahead == 1 and len(cursor.text) == 1):
        return None
    if after.text not in ENDING and after.text not in RELATIONS and after.kind != "joiner":
        return None
    return Node("text", " ".join(cursor.take().text.casefold() for _ in range(ahead)))


def _member(cursor: Cursor) -> Node:
    if (money := currency(cursor)) is not None:
        return money
    first = expression(cursor)
    if cursor.text == ":" and cursor.look(1).kind != "end":
        first = _ratio(cursor, first)
    return quantity(cursor, first)


def _ratio(cursor: Cursor, first: Node) -> Node:
    """3:4 and 12:05. The digits are kept: only two of them make minutes."""
    begin, parts = cursor.place - 1, [first]
    while cursor.accept(":"):
        parts.append(expression(cursor))
    texts = [token.text for token in cursor.tokens[begin : cursor.place]]
    plain = len(texts) == 2 * len(parts) - 1
    return Node("ratio", "".join(texts) if plain else "", tuple(parts))
