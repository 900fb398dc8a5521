"""From the text of an answer to what it may mean."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from qed.grading.bounds import OverBoundError, UnreadableError
from qed.grading.normalise import clean_text
from qed.grading.spoken import read_number
from qed.grading.structure import parse
from qed.grading.tokens import Token, build_key, tokenize
from qed.grading.tree import Node, number
from qed.grading.vocabulary import NUMBER_WORDS

BASE_BRACKETS = {"{", "}", "(", ")"}
NO_NUMERAL = Node("text", "no such numeral")  # a digit as large as the base or larger
CHOICES = set("ABCDEFGH")
LONGEST_CHOICE = 60  # tokens
CHOICE_SIGNS = set("()[]{},.%$:-+/^*<>|!") | {"<=", ">="}
LONGEST_CLEANED = 12_000
AMBIGUOUS_EXPONENT = re.compile(r"\d[eE][+-]\d")
AMBIGUOUS_COMMA = re.compile(r"\d,\d{3}(?!\d)")
THOUSANDS_END = re.compile(r",0\d{2}(?!\d)")  # no item of a list begins with a zero
AMBIGUOUS_PERIOD = re.compile(r"(\d\.\d{0,20})\((\d{1,20})\)(?![\d(.])")
# No number begins with a zero like the second one would here, so the comma is a decimal point.
DECIMAL_COMMA = re.compile(r"-?(?:\d{1,15},0(?:\d|\d{3,15})|0,\d{3,15})")
SHORT_WORDS = frozenset(
    "no on of go am is it in to do up so or at as if we he me us an by my be ok ha hi oh".split()  # noqa: SIM905
)


class Reading(NamedTuple):
    """The tokens as one string, the choice letter that it begins with, and the values it may have."""

    key: str
    choice: str = ""
    bare: bool = False
    """Whether the choice letter is all there is."""
    values: tuple[Node, ...] = ()
    trouble: str = ""
    over: bool = False
    """Whether a bound was met."""


def read_answer(text: str, letter_units: bool = False) -> Reading:
    """What a text says. Never raises."""
    try:
        text = clean_text(text)
        if len(text) > LONGEST_CLEANED:
            raise OverBoundError("too long")
        tokens = tokenize(text)
    except OverBoundError as error:
        return Reading("", trouble=str(error), over=True)
    choice, bare = _read_choice(tokens)
    shared = Reading(build_key(tokens), choice, bare)
    try:
        values = [_parse_value(tokens, letter_units)]
    except UnreadableError as error:
        return shared._replace(trouble=str(error))
    except (OverBoundError, RecursionError) as error:
        return shared._replace(trouble=str(error) or "nested too deeply", over=True)
    return shared._replace(values=(*values, *_read_other_ways(text, letter_units)))


def _read_other_ways(text: str, letter_units: bool) -> list[Node]:
    """Further readings: 2e-3 with Euler's number, 100,200 as two numbers, 0.1(6) with a period."""
    readings = []
    if AMBIGUOUS_EXPONENT.search(text):
        readings.append((text, False, True))
    if AMBIGUOUS_COMMA.search(text) and not THOUSANDS_END.search(text):
        readings.append((text, True, False))
    if AMBIGUOUS_PERIOD.search(text):
        readings.append((AMBIGUOUS_PERIOD.sub(r"\1\\overline{\2}", text), True, True))
    if DECIMAL_COMMA.fullmatch(text):
        readings.append((text.replace(",", "."), True, True))
    found = []
    for spelling, scientific, commas in readings:
        try:
            found.append(_parse_value(tokenize(spelling, scientific, commas), letter_units))
        except (UnreadableError, OverBoundError, RecursionError):
            continue
    return found


def _parse_value(tokens: list[Token], letter_units: bool) -> Node:
    if (based := _read_base(tokens)) is not None:
        return based
    if (word := _read_word(tokens) or _read_phrase(tokens)) is not None:
        return word
    return parse(tokens, letter_units)


def _read_word(tokens: list[Token]) -> Node | None:
    """Letters side by side and nothing else are a word: never a product of letters."""
    if len(tokens) < 2 or any(token.kind != "letter" for token in tokens) or any(token.spaced for token in tokens[1:]):
        return None
    word = "".join(token.text for token in tokens).casefold()
    if set(word) <= set("xyz"):
        return None
    return Node("text", word) if len(word) > 2 or word in SHORT_WORDS else None


def _read_phrase(tokens: list[Token]) -> Node | None:
    """A number in words, kept as a text: only beside a number does it become one."""
    if len(tokens) < 2 or tokens[0].kind != "word":
        return None
    words = [token.text.casefold() for token in tokens]
    return Node("text", " ".join(word for word in words if word != "-")) if read_number(words) is not None else None


def read_number_word(node: Node) -> Node:
    """The number that a text names, with the unit behind it: six, twenty-five, ten dollars."""
    words = node.name.split() if node.kind == "text" else []
    for place in range(len(words), 0, -1):
        value = read_number(words[:place])
        if value is not None:
            rest = (
                read_answer(f"{value} \\text{{ {' '.join(words[place:])} }}").values
                if words[place:]
                else (number(value),)
            )
            return rest[0] if len(rest) == 1 else node
    return node


def _read_base(tokens: list[Token]) -> Node | None:
    """4210_5: digits, an underscore and the base, in digits or in words."""
    place = next((place for place, token in enumerate(tokens) if token.text in {"_", "base"}), 0)
    digits, base = tokens[:place], [token for token in tokens[place + 1 :] if token.text not in BASE_BRACKETS]
    digits = digits[:-1] if digits and digits[-1].text == "(" else digits  # 21 (base 5)
    if len(digits) > 2 and digits[0].text == "(" and digits[-1].text == ")":
        digits = digits[1:-1]
    if not digits or len(base) != 1 or any(token.kind not in {"number", "letter", "word"} for token in digits):
        return None
    text = "".join(token.text for token in digits).upper()
    known = base[0].text if base[0].kind == "number" else str(NUMBER_WORDS.get(base[0].text.lower(), ""))
    if not (text.isalnum() and text.isascii() and known.isdigit() and 2 <= int(known[:3]) <= 36):
        return None
    wrong = any(int(sign, 36) >= int(known) for sign in text)
    letters = not any(token.kind == "number" for token in digits)
    if letters and (wrong or len(text) < 2 or int(known) < 11):  # x_12 is a name
        return None
    return Node("based", f"{text.lstrip('0') or '0'}_{int(known)}", (NO_NUMERAL,) if wrong else ())


def _read_choice(tokens: list[Token]) -> tuple[str, bool]:
    """The letter of a choice: B, (B), B., (B) 12."""
    if tokens and tokens[0].text == "{":  # \\mathbf{(B)} 3
        tokens = [token for token in tokens if token.text not in {"{", "}"}]
    if several := _read_choices(tokens):
        return several, True
    if len(tokens) > 1 and tokens[0].text.lower() in {"option", "choice"}:
        tokens = tokens[1:]
    opened = bool(tokens) and tokens[0].text == "("
    letter, after = (*tokens[opened : opened + 2], Token("end", ""), Token("end", ""))[:2]
    name = letter.text.upper()
    if letter.kind not in {"letter", "word"} or name not in CHOICES:
        return "", False
    rest = tokens[opened + 1 :]
    if after.text not in {")", ".", ":", ""} or (opened and after.text != ")"):
        return "", False
    rest = rest[1:]
    if after.text == ":" and (not rest or not rest[0].spaced):
        return "", False
    if rest and (letter.text != name or _names_other_choice(rest) or not _is_harmless(rest)):
        return "", False
    return name, not rest


def _read_choices(tokens: list[Token]) -> str:
    """The letters of several choices, in order: BD, B and D, D, B. Glued letters are choices only in order."""
    letters = [token.text for token in tokens if token.kind in {"letter", "word"}]
    others = [token for token in tokens if token.kind not in {"letter", "word"}]
    single = "".join(letters)
    if not 2 <= len(single) <= len(CHOICES) or not set(single) <= CHOICES or len(set(single)) < len(single):
        return ""
    if others and len(letters) == len(single) and all(one.kind == "joiner" or one.text in {",", ";"} for one in others):
        return "".join(sorted(letters))
    return single if not others and single == "".join(sorted(single)) else ""


def _is_harmless(rest: list[Token]) -> bool:
    """Whether what stands behind a choice letter can be the words or the value of a choice: no call, no code."""
    if len(rest) > LONGEST_CHOICE or any(
        one.kind == "word" and two == ("sign", "(", False) for one, two in pairwise(rest)
    ):
        return False
    return all(token.kind != "sign" or token.text in CHOICE_SIGNS for token in rest)


def _names_other_choice(rest: list[Token]) -> bool:
    """Whether what follows a choice letter names another one, or states something of it."""
    if rest[0].kind == "joiner" or rest[0].text in {",", ";", "=", "+", "*", "/", "^", "-"}:
        return True
    pairs = pairwise(rest)
    return any(one.text in CHOICES and two.text in {")", ".", ":"} for one, two in pairs) or any(
        token.text == "=" for token in rest
    )
