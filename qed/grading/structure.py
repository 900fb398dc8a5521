"""Parser of complete answers: lists, relations, unions, ratios and quantities of expressions."""

from __future__ import annotations

from qed.grading.bounds import MAX_ITEMS, OverBoundError
from qed.grading.cursor import Cursor
from qed.grading.expression import parse_expression
from qed.grading.statements import check_chain, check_rounding
from qed.grading.tokens import Token
from qed.grading.tree import SETS, Node
from qed.grading.units import combine_quantities, parse_currency, parse_quantity
from qed.grading.vocabulary import INEQUALITIES, RELATIONS

SETTING = {"\\cup": "or", "\\cap": "and", "\\setminus": "without"}
LISTING = {"\\or": "or", "\\land": "and", "\\cup": "or", "\\cap": "and"}  # x < 2 \\cup x > 3
NUMBERS = {"number", "negate", "divide", "constant"}
REALS = Node("symbol", "\\mathbb R")
INTEGERS = Node("symbol", "\\mathbb Z")
NAMED_SETS = dict.fromkeys(("all real numbers", "all reals", "all real values", "set of all real numbers"), REALS)
NAMED_SETS |= dict.fromkeys(("all real x", "all x", "every real number", "any real number"), REALS)
NAMED_SETS |= dict.fromkeys(("all integers", "integers", "set of integers", "set of all integers"), INTEGERS)
NAMED_SETS |= dict.fromkeys(("real numbers", "set of real numbers", "reals"), REALS)
NAMED_SETS |= dict.fromkeys(("empty set", "null set"), Node("set"))
ROW_ENDS = ("\\\\", "\\end{", "&")  # a comma before the end of a row is not a separator
MODULO = {"\\pmod", "\\mod", "\\bmod", "mod"}
SPARSE = {"Z", "N", "Q"}  # sets whose numbers between two bounds are not an interval
ENDING = {")", "]", "}", "\\}", "|", "&", "\\\\", "", ",", ";", "\\or", "\\land", "\\rfloor", "\\rceil", ":"}


def parse(tokens: list[Token], letter_units: bool = False) -> Node:
    """Parse all tokens as one value.

    Raises:
        UnreadableError: the tokens are not an answer that the parser knows.
        OverBoundError: the answer is too large.
    """
    cursor = Cursor(list(tokens), parse_listing, letter_units)
    node = parse_listing(cursor)
    cursor.expect_end()
    return node


def parse_listing(cursor: Cursor) -> Node:
    """Parse answers separated by semicolons, each of which may be a list separated by commas."""
    with cursor.nest():
        if builder := _parse_set_builder(cursor):
            return builder
        groups = [_parse_answers(cursor)]
        while cursor.text == ";":
            cursor.take()
            groups.append(_parse_answers(cursor))
    if len(groups) == 1:
        return groups[0]
    return Node("list", ",", tuple(groups))


def _parse_answers(cursor: Cursor) -> Node:
    braced = cursor.text == "\\{"
    items, joiners = [parse_relation(cursor)], set()
    while (separator := _read_separator(cursor)) is not None:
        joiners.add(separator)
        braced = braced and cursor.text == "\\{"
        items.append(parse_relation(cursor))
        if len(items) > MAX_ITEMS:
            raise OverBoundError("too many items")
    if len(items) == 1:
        return items[0]
    items = _share_sign(_share_modulus(items))
    if joiners == {"and"} and (quantity := combine_quantities(items)) is not None:
        return quantity
    joiners -= {","} if len(joiners) > 1 else set()
    if braced and joiners <= {",", "and"} and not any(item.kind == "set" for item in items):
        return Node("list", SETS, tuple(items))
    return Node("list", joiners.pop() if len(joiners) == 1 else ",", tuple(items))


def _share_modulus(items: list[Node]) -> list[Node]:
    """Give all items the modulus of the last one: n ≡ 0, 1 (mod 3). A name before the first item applies to all."""
    last = items[-1].parts[-1] if items[-1].kind == "relation" else items[-1]
    if last.kind != "congruence":
        return items
    shared = list[Node]()
    for item in items:
        name, value = item.parts if item.kind == "relation" and len(item.parts) == 2 else (None, item)
        if value.kind in NUMBERS | {"symbol"}:
            value = Node("congruence", parts=(value, last.parts[1]))
        name = name or (shared[0].parts[0] if shared and shared[0].kind == "relation" else None)
        shared.append(value if name is None else Node("relation", "=", (name, value)))
    return shared


def _share_sign(items: list[Node]) -> list[Node]:
    """Repeat a name and its ≠ for all values: x ≠ 1, 2."""
    first, rest = items[0], items[1:]
    if first.kind != "relation" or first.name != "!=" or not all(item.kind in NUMBERS for item in rest):
        return items
    return [first, *(first._replace(parts=(first.parts[0], item)) for item in rest)]


def _read_separator(cursor: Cursor) -> str | None:
    """Read a separator: a comma, a word, or both, as in `a, b, and c`."""
    if cursor.text == "," and cursor.peek(1).text.startswith(ROW_ENDS):
        cursor.position += 1
        return None
    comma = "," if cursor.accept_any(",") else None
    if cursor.peek().kind == "joiner":
        return cursor.take().text
    if cursor.text in LISTING:
        return LISTING[cursor.take().text]
    return comma


def _parse_set_builder(cursor: Cursor) -> Node | None:
    """Parse {x | x > 2} and {x ∈ ℝ : x > 2}, where the condition describes the set, and {5k + 3 : k ∈ ℤ} and
    {x ∈ ℤ : x > 2}, where both sides do."""
    if cursor.position == 0 or cursor.peek(-1).text != "\\{":
        return None
    if (family := _parse_family(cursor)) is not None:
        return family
    if cursor.peek().kind != "letter":
        return None
    ahead = 1
    if cursor.peek(1).text == "\\in":
        while cursor.peek(ahead).text in {"\\in", "\\mathbb", "{", "}"} or cursor.peek(ahead).kind == "letter":
            ahead += 1
    if cursor.peek(ahead).text not in {"|", ":"}:
        return None
    name, domain = cursor.text, cursor.peek(ahead - 1 - (cursor.peek(ahead - 1).text == "}")).text
    cursor.position += ahead + 1
    condition = _parse_answers(cursor)
    if domain in SPARSE and _bounds_numbers(name, condition):
        member = Node("relation", "in", (Node("symbol", name), Node("symbol", f"\\mathbb {domain}")))
        condition = Node("list", ",", (condition, member))
    return Node("builder", parts=(condition,))


def _bounds_numbers(name: str, condition: Node) -> bool:
    """Return whether a condition has inequalities, other than one alone that bounds integers n from below."""
    if condition.kind == "list":
        return any(_bounds_numbers("", part) for part in condition.parts)
    inequality = condition.kind == "relation" and not INEQUALITIES.isdisjoint(condition.name.split())
    bound = {">": -1, ">=": -1, "<": 0, "<=": 0}.get(condition.name)  # n > 2 and 2 < n
    counted = bound is not None and condition.parts[bound].kind in NUMBERS and name in {"n", "m", "k"}
    return inequality and not counted


def _declares_sparse(node: Node, name: Node) -> bool:
    """Return whether a node is x ∈ ℤ, or x in another set without intervals, for the name x."""
    sets = {f"\\mathbb {domain}" for domain in SPARSE}
    return node.kind == "relation" and node.name == "in" and node.parts[0] == name and node.parts[1].name in sets


def _parse_family(cursor: Cursor) -> Node | None:
    """Parse 5k + 3 : k ∈ ℤ, an expression that is more than a letter, with the set of its parameter."""
    tokens, start = cursor.tokens, cursor.position
    end = next((index for index in range(start, len(tokens)) if tokens[index].text in {":", "|", "\\}"}), len(tokens))
    texts = [token.text for token in tokens[end + 1 : end + 4]]
    if end - start < 2 or "\\in" in [token.text for token in tokens[start:end]] or texts[1:] != ["\\in", "\\mathbb"]:
        return None
    inner = Cursor(tokens[start:end], cursor.parse_inner, cursor.letter_units, depth=cursor.depth)
    value = _parse_answers(inner)
    inner.expect_end()
    cursor.position = end + 1
    return Node("builder", parts=(Node("list", ",", (value, _parse_answers(cursor))),))


def parse_relation(cursor: Cursor) -> Node:
    """Parse sides with =, <, ≤, ≠ or ∈ between them; a single side is returned as it is."""
    sides, signs = [_parse_side(cursor)], []
    while cursor.peek().kind != "end" and cursor.text in RELATIONS:
        signs.append(RELATIONS[cursor.take().text])
        sides.append(_parse_side(cursor))
    if signs == ["~"] and sides[0].kind in {"symbol", "text"}:  # x ≈ 11 means 11
        signs = ["="]
    if "~" in signs:  # the part before the sign is exact
        index = signs.index("~")
        check_rounding(sides[index], sides[index + 1 :])
        sides, signs = sides[: index + 1], signs[:index]
    return _build_relation(sides, signs)


def _build_relation(sides: list[Node], signs: list[str]) -> Node:
    """Build one relation. A chain of equations becomes its first and last side, or one value for several names.

    Raises:
        ContradictionError: the numbers of a chain contradict each other, as in x = 41 = 42.
    """
    if not signs:
        return sides[0]
    if signs == ["in"] and sides[1].kind == "list" and _declares_sparse(sides[1].parts[-1], sides[0]):
        return sides[1]  # x ∈ {x ∈ ℤ : x > 2}
    if sides[-1].kind == "congruence" and signs == ["=="]:
        signs = ["="]
    if set(signs) == {"="} and len(sides) > 2:
        if all(side.kind == "symbol" for side in sides):  # a = b = c in any order
            sides = sorted(sides)
        names = [side for side in sides[:-1] if side.kind in {"symbol", "text"}]
        if len(names) > 1:
            return Node("list", ",", tuple(Node("relation", "=", (name, sides[-1])) for name in names))
        check_chain(sides)
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
    """Parse 3 \\pmod 7 and 3 (mod 7)."""
    opened = cursor.text == "(" and cursor.peek(1).text == "mod"
    if not (opened or cursor.text in MODULO) or cursor.peek().kind == "end":
        return value
    cursor.position += 1 + opened
    result = Node("congruence", parts=(value, parse_expression(cursor)))
    if opened:
        cursor.expect(")")
    return result


def _parse_words(cursor: Cursor) -> Node | None:
    """Parse a side that consists of words, as a text or as the name before an equals sign."""
    if cursor.peek().kind != "word":
        return None
    ahead = 1
    while cursor.peek(ahead).kind == "word":
        ahead += 1
    after = cursor.peek(ahead)
    if ahead == 1 and len(cursor.text) == 1 and cursor.text < "\u3000":  # a letter, unless Chinese
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
    """Parse 3:4 and 12:05. The name keeps the digits, because minutes have exactly two."""
    start, parts = cursor.position - 1, [first]
    while cursor.accept_any(":"):
        parts.append(parse_expression(cursor))
    texts = [token.text for token in cursor.tokens[start : cursor.position]]
    plain = len(texts) == 2 * len(parts) - 1 and all(part.kind == "number" and part.number >= 0 for part in parts)
    return Node("ratio", "".join(texts) if plain else "", tuple(parts))
