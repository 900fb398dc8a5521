"""Parse numerals with a base: 4210_5, 2A7_{16}, 1101 (base 2), 0x2A7."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import accumulate

from qed.grading.tokens import Token
from qed.grading.tree import Node
from qed.grading.vocabulary import NUMBER_WORDS

BASE_BRACKETS = {"{", "}", "(", ")"}
NO_NUMERAL = Node("text", "no such numeral")  # with a digit that is not smaller than the base
NAMED_BASES = {"binary": "2", "octal": "8", "decimal": "10", "hexadecimal": "16", "hex": "16", "bin": "2", "oct": "8"}
MARKS = {"_", "base"} | NAMED_BASES.keys()
PREFIXED = re.compile(r"0([xXbBoO])([0-9a-fA-F]{1,60})")
PREFIXES = {"x": 16, "b": 2, "o": 8}
DIGIT_KINDS = {"number", "letter", "word"}


def read_based(tokens: list[Token]) -> Node | None:
    """Read a numeral with its base, in digits or in words; None if the tokens are not such a numeral."""
    tokens = _remove_braces(tokens)
    if len(tokens) > 3 and tokens[0].kind == "letter" and tokens[1].text == "=":  # N = 245_7
        tokens = tokens[2:]
    if len(tokens) > 1 and tokens[0].text == "0":
        return _read_prefixed("".join(token.text for token in tokens))
    if MARKS.isdisjoint(token.text.lower() for token in tokens):
        return None
    digits, base = _split_base(tokens)
    if len(digits) > 2 and digits[0].text == "(" and digits[-1].text == ")":
        digits = digits[1:-1]
    if not digits or len(base) != 1 or any(token.kind not in DIGIT_KINDS for token in digits):
        return None
    text, radix = "".join(token.text for token in digits).upper(), _read_radix(base[0])
    if not (text.isalnum() and text.isascii()) or radix is None:
        return None
    letters = not any(token.kind == "number" for token in digits)
    if letters and (_is_invalid(text, radix) or len(text) < 2 or radix < 11):  # x_12 is a name
        return None
    return _build_based(text, radix)


def _remove_braces(tokens: list[Token]) -> list[Token]:
    """Remove one pair of braces around all tokens, such as those of a box."""
    if not tokens or tokens[0].text != "{" or tokens[-1].text != "}":
        return tokens
    depths = list(accumulate((token.text == "{") - (token.text == "}") for token in tokens))
    return tokens[1:-1] if 0 not in depths[:-1] else tokens


def _split_base(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """Split the digits from the base, which follows an underscore or the word base, or is a word itself."""
    named = len(tokens) > 1 and tokens[0].kind == "number" and tokens[-1].text.lower() in NAMED_BASES
    if named and not any(token.text in {"_", "base"} for token in tokens):
        return [token for token in tokens[:-1] if token.text not in {"in", "("}], tokens[-1:]
    index = next((index for index, token in enumerate(tokens) if token.text in {"_", "base"}), 0)
    digits, base = tokens[:index], [token for token in tokens[index + 1 :] if token.text not in BASE_BRACKETS]
    base = base[1:] if len(base) > 1 and base[0].text == "base" else base
    digits = digits[:-2] if [token.text for token in digits[-2:]] == ["i", "n"] else digits  # 21 in base 5
    while digits and digits[-1].text in {"(", "in"}:  # 21 (base 5)
        digits = digits[:-1]
    return digits, base if len(base) < 2 or base[0].kind != "letter" else [_join(base)]


def _join(letters: list[Token]) -> Token:
    return Token("word", "".join(token.text for token in letters))


def _read_radix(token: Token) -> int | None:
    name = token.text.lower()
    text = name if token.kind == "number" else NAMED_BASES.get(name, str(NUMBER_WORDS.get(name, "")))
    return int(text[:3]) if text.isdigit() and 2 <= int(text[:3]) <= 36 else None


def _read_prefixed(text: str) -> Node | None:
    """Read a numeral in the notation of programming languages."""
    match = PREFIXED.fullmatch(text)
    if match is None:
        return None
    # The number marks a prefix such as 0x, which is a part of the numeral and not a base that may be omitted.
    return _build_based(match.group(2).upper(), PREFIXES[match.group(1).lower()])._replace(number=Fraction(1))


def _is_invalid(text: str, radix: int) -> bool:
    return any(int(digit, 36) >= radix for digit in text)


def _build_based(text: str, radix: int) -> Node:
    return Node("based", f"{text.lstrip('0') or '0'}_{radix}", (NO_NUMERAL,) if _is_invalid(text, radix) else ())
