"""Reading of an answer: from its text to the values that it may have."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from qed.grading.bounds import OverBoundError, UnreadableError
from qed.grading.normalise import clean_text
from qed.grading.spoken import read_number
from qed.grading.structure import parse
from qed.grading.tokens import Letters, Token, build_key, tokenize
from qed.grading.tree import Node, make_number
from qed.grading.vocabulary import NUMBER_WORDS

BASE_BRACKETS = {"{", "}", "(", ")"}
NO_NUMERAL = Node("text", "no such numeral")  # a digit that is not smaller than the base
CHOICES = set("ABCDEFGH")
MAX_CHOICE_TOKENS = 60  # tokens
CHOICE_SIGNS = set("()[]{},.%$:-+/^*<>|!") | {"<=", ">="}
MAX_CLEANED_CHARS = 12_000
AMBIGUOUS_EXPONENT = re.compile(r"\d[eE][+-]\d")
AMBIGUOUS_COMMA = re.compile(r"\d,\d{3}(?!\d)")
THOUSANDS_END = re.compile(r",0\d{2}(?!\d)")  # no item of a list begins with a zero
AMBIGUOUS_PERIOD = re.compile(r"(\d\.\d{0,20})\((\d{1,20})\)(?![\d(.])")
# The second number of a list would not begin with a zero like this, so the comma is a decimal point.
DECIMAL_COMMA = re.compile(r"-?(?:\d{1,15},0(?:\d|\d{3,15})|0,\d{3,15})")
VOWELS = set("aeiou")  # without one, two or three letters are a product: mgh
SHORT_WORDS = frozenset(
    "no on of go am is it in to do up so or at as if we he me us an by my be ok ha hi oh".split()  # noqa: SIM905
)


class Reading(NamedTuple):
    """The tokens as one string, the choice letter at the start, and the possible values."""

    key: str
    choice: str = ""
    bare: bool = False
    """Whether there is nothing but the choice letter."""
    values: tuple[Node, ...] = ()
    trouble: str = ""
    over: bool = False
    """Whether a limit of `bounds` was reached."""


def read_answer(text: str, letters: Letters = "plain") -> Reading:
    """Read a text. Never raises; `trouble` says why it cannot be read."""
    try:
        text = clean_text(text)
        if len(text) > MAX_CLEANED_CHARS:
            raise OverBoundError("too long")
        tokens = tokenize(text, letters=letters)
    except OverBoundError as error:
        return Reading("", trouble=str(error), over=True)
    choice, bare = _read_choice(tokens)
    shared = Reading(build_key(tokens), choice, bare)
    try:
        values = [_parse_value(tokens, letters)]
    except UnreadableError as error:
        if letters == "plain" and any(token.kind == "word" and len(token.text) <= 3 for token in tokens):
            return read_answer(text, "variables")._replace(key=shared.key)  # 2\pi ft^2y
        return shared._replace(trouble=str(error))
    except (OverBoundError, RecursionError) as error:
        return shared._replace(trouble=str(error) or "nested too deeply", over=True)
    return shared._replace(values=(*values, *_read_other_ways(text, letters)))


def _read_other_ways(text: str, letters: Letters) -> list[Node]:
    """Return further readings: 2e-3 with Euler's number, 100,200 as two numbers, 0.1(6) with a period."""
    readings = []
    if AMBIGUOUS_EXPONENT.search(text):
        readings.append((text, False, True))
    if AMBIGUOUS_COMMA.search(text) and not THOUSANDS_END.search(text):
        readings.append((text, True, False))
    if AMBIGUOUS_PERIOD.search(text):
        readings.append((AMBIGUOUS_PERIOD.sub(r"\1\\overline{\2}", text), True, True))
    if DECIMAL_COMMA.fullmatch(text):
        readings.append((text.replace(",", "."), True, True))
    values = []
    for reading, scientific, commas in readings:
        try:
            values.append(_parse_value(tokenize(reading, scientific, commas, letters), letters))
        except (UnreadableError, OverBoundError, RecursionError):
            continue
    return values


def _parse_value(tokens: list[Token], letters: Letters) -> Node:
    if (based := _read_base(tokens)) is not None:
        return based
    if letters != "variables" and (word := _read_word(tokens)) is not None:
        return word
    if (phrase := _read_phrase(tokens)) is not None:
        return phrase
    return parse(tokens, letters == "units")


def _read_word(tokens: list[Token]) -> Node | None:
    """Read adjacent letters alone as a word, never as a product of letters."""
    if len(tokens) < 2 or any(token.kind != "letter" for token in tokens) or any(token.spaced for token in tokens[1:]):
        return None
    word = "".join(token.text for token in tokens).casefold()
    if len(word) <= 3 and not set(word) & VOWELS:
        return None
    return Node("text", word) if len(word) > 2 or word in SHORT_WORDS else None


def _read_phrase(tokens: list[Token]) -> Node | None:
    """Read a number in words as a text; it becomes a number only when the other side is a number."""
    if len(tokens) < 2 or tokens[0].kind != "word":
        return None
    words = [token.text.casefold() for token in tokens]
    return Node("text", " ".join(word for word in words if word != "-")) if read_number(words) is not None else None


def read_number_word(node: Node) -> Node:
    """Convert a text that names a number, with any unit after it: six, twenty-five, ten dollars."""
    words = node.name.split() if node.kind == "text" else []
    for index in range(len(words), 0, -1):
        value = read_number(words[:index])
        if value is not None:
            rest = (
                read_answer(f"{value} \\text{{ {' '.join(words[index:])} }}").values
                if words[index:]
                else (make_number(value),)
            )
            return rest[0] if len(rest) == 1 else node
    return node


def _read_base(tokens: list[Token]) -> Node | None:
    """Read 4210_5: digits, an underscore and the base, in digits or in words."""
    index = next((index for index, token in enumerate(tokens) if token.text in {"_", "base"}), 0)
    digits, base = tokens[:index], [token for token in tokens[index + 1 :] if token.text not in BASE_BRACKETS]
    digits = digits[:-1] if digits and digits[-1].text == "(" else digits  # 21 (base 5)
    if len(digits) > 2 and digits[0].text == "(" and digits[-1].text == ")":
        digits = digits[1:-1]
    if not digits or len(base) != 1 or any(token.kind not in {"number", "letter", "word"} for token in digits):
        return None
    text = "".join(token.text for token in digits).upper()
    radix = base[0].text if base[0].kind == "number" else str(NUMBER_WORDS.get(base[0].text.lower(), ""))
    if not (text.isalnum() and text.isascii() and radix.isdigit() and 2 <= int(radix[:3]) <= 36):
        return None
    invalid = any(int(digit, 36) >= int(radix) for digit in text)
    letters = not any(token.kind == "number" for token in digits)
    if letters and (invalid or len(text) < 2 or int(radix) < 11):  # x_12 is a name
        return None
    return Node("based", f"{text.lstrip('0') or '0'}_{int(radix)}", (NO_NUMERAL,) if invalid else ())


def _read_choice(tokens: list[Token]) -> tuple[str, bool]:
    """Read the letter of a choice, and whether it is alone: B, (B), B., (B) 12."""
    if tokens and tokens[0].text == "{":  # \\mathbf{(B)} 3
        tokens = [token for token in tokens if token.text not in {"{", "}"}]
    if choices := _read_choices(tokens):
        return choices, True
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
    """Read the letters of several choices, sorted: BD, B and D, D, B. Adjacent letters must already be sorted."""
    letters = [token.text for token in tokens if token.kind in {"letter", "word"}]
    others = [token for token in tokens if token.kind not in {"letter", "word"}]
    joined = "".join(letters)
    if not 2 <= len(joined) <= len(CHOICES) or not set(joined) <= CHOICES or len(set(joined)) < len(joined):
        return ""
    separated = all(token.kind == "joiner" or token.text in {",", ";"} for token in others)
    if others and len(letters) == len(joined) and separated:
        return "".join(sorted(letters))
    return joined if not others and joined == "".join(sorted(joined)) else ""


def _is_harmless(rest: list[Token]) -> bool:
    """Return whether the text after a choice letter can be the text or the value of a choice, not a call or code."""
    if len(rest) > MAX_CHOICE_TOKENS or any(
        one.kind == "word" and two == ("sign", "(", False) for one, two in pairwise(rest)
    ):
        return False
    return all(token.kind != "sign" or token.text in CHOICE_SIGNS for token in rest)


def _names_other_choice(rest: list[Token]) -> bool:
    """Return whether the text after a choice letter names another letter, or is an equation or calculation with it."""
    if rest[0].kind == "joiner" or rest[0].text in {",", ";", "=", "+", "*", "/", "^", "-"}:
        return True
    pairs = pairwise(rest)
    return any(one.text in CHOICES and two.text in {")", ".", ":"} for one, two in pairs) or any(
        token.text == "=" for token in rest
    )
