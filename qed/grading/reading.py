"""Read an answer: from its text to the values that it may have."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from qed.grading.atoms import parse_digits
from qed.grading.based import read_based
from qed.grading.bounds import ContradictionError, OverBoundError, UnreadableError
from qed.grading.choices import read_choice
from qed.grading.counting import COUNTED, COUNTING, write_as_binomials
from qed.grading.normalise import clean_text
from qed.grading.phrases import rewrite_phrases
from qed.grading.spoken import MAX_WORDS, read_number
from qed.grading.structure import parse
from qed.grading.tokens import Letters, Token, build_key, tokenize
from qed.grading.tree import Node, make_number, negate

MAX_CLEANED_CHARS = 12_000
# Numbers and fractions of numbers, the most frequent answers, whose tokens are known without a tokenizer.
PLAIN_NUMBER = re.compile(
    r"(-?)(?:([0-9]{1,30}(?:\.[0-9]{1,30})?)|(?:\\[dt]?frac\{([0-9]{1,30})\}\{|([0-9]{1,30})/)([0-9]{1,30})(?(3)\}))"
)
AMBIGUOUS_EXPONENT = re.compile(r"\d[eE][+-]\d")
AMBIGUOUS_COMMA = re.compile(r"\d,\d{3}(?!\d)")
THOUSANDS_END = re.compile(r",0\d{2}(?!\d)")  # no item of a list begins with a zero
AMBIGUOUS_PERIOD = re.compile(r"(\d\.\d{0,20})\((\d{1,20})\)(?![\d(.])")
# A comma without a space after it may be a decimal point, unless it is between thousands.
DECIMAL_COMMA = re.compile(r"(?<![\d.,])(0,(?=\d)|\d{1,15},(?!\d{3}(?!\d))(?=\d))(?=\d{1,30}(?![\d.,]))")
LONE_ZERO = re.compile(r",0$")  # -3,0 are two answers
ENCLOSED = re.compile(r"[(\[]|\\\{")
VOWELS = set("aeiou")  # two or three letters without a vowel are a product: mgh
SHORT_WORDS = frozenset(
    "no on of go am is it in to do up so or at as if we he me us an by my be ok ha hi oh ja".split()  # noqa: SIM905
)


class Reading(NamedTuple):
    """The tokens as one string, the choice letter at the beginning, and the possible values."""

    key: str
    choice: str = ""
    bare: bool = False
    """Whether there is nothing but the choice letter."""
    marked: bool = True
    """Whether a sign marks the letter as a choice."""
    values: tuple[Node, ...] = ()
    trouble: str = ""
    over: bool = False
    """Whether a limit of `qed.grading.bounds` was reached."""
    contradictory: bool = False
    """Whether the text contradicts itself."""


def read_answer(text: str, letters: Letters = "plain") -> Reading:
    """Read a text. Never raises; `trouble` says why it cannot be read."""
    if (plain := PLAIN_NUMBER.fullmatch(text)) is not None:
        return _read_plain(*plain.groups())
    try:
        text, tokens, key = _read_tokens(text, letters)
    except OverBoundError as error:
        return Reading("", trouble=str(error), over=True)
    shared = Reading(key, *read_choice(tokens))
    values, trouble, contradictory = list[Node](), "", False
    try:
        values.append(_parse_value(tokens, letters))
    except UnreadableError as error:
        trouble, contradictory = str(error), isinstance(error, ContradictionError)
    except (OverBoundError, RecursionError) as error:
        return shared._replace(trouble=str(error) or "nested too deeply", over=True)
    values += _read_other_ways(text, tokens, letters)
    if (
        not (values or contradictory)
        and letters == "plain"
        and any(token.kind == "word" and len(token.text) <= 3 for token in tokens)
    ):
        return read_answer(text, "variables")._replace(key=shared.key)  # 2\pi ft^2y
    if values:
        return shared._replace(values=tuple(values))
    return shared._replace(trouble=trouble, contradictory=contradictory)


def _read_plain(sign: str, number: str | None, above: str | None, left: str | None, below: str | None) -> Reading:
    """Read a match of `PLAIN_NUMBER` in the same way as the parser: -3.50, \\frac{1}{2}, 1/2."""
    parts = (number,) if number is not None else (above or left, below)
    nodes = tuple(make_number(parse_digits(part)) for part in parts if part is not None)
    node = nodes[0] if number is not None else Node("divide", parts=nodes)
    words = number or (f"\\frac {above} {below}" if above is not None else f"{left} / {below}")
    return Reading(f"- {words}", values=(negate(node),)) if sign else Reading(words, values=(node,))


def _read_tokens(text: str, letters: Letters) -> tuple[str, list[Token], str]:
    """Return the text and its tokens, with phrases rewritten as mathematics, and the key of the text as written."""
    text = clean_text(text)
    if len(text) > MAX_CLEANED_CHARS:
        raise OverBoundError("too long")
    tokens = tokenize(text, letters=letters)
    key, rewritten = build_key(tokens), rewrite_phrases(text, letters == "variables")
    return (text, tokens, key) if rewritten == text else (rewritten, tokenize(rewritten, letters=letters), key)


def _read_other_ways(text: str, tokens: list[Token], letters: Letters) -> list[Node]:
    """Return further readings: 2e-3 with Euler's number, 100,200 as two numbers, 0.1(6) with a period, 20C10."""
    readings: list[Callable[[], list[Token]]] = []
    if AMBIGUOUS_EXPONENT.search(text):
        readings.append(lambda: tokenize(text, False, True, letters))
    if AMBIGUOUS_COMMA.search(text) and not THOUSANDS_END.search(text):
        readings.append(lambda: tokenize(text, True, False, letters))
    if AMBIGUOUS_PERIOD.search(text):
        readings.append(lambda: tokenize(AMBIGUOUS_PERIOD.sub(r"\1\\overline{\2}", text), letters=letters))
    if text.count(",") == 1 and not ENCLOSED.search(text) and DECIMAL_COMMA.search(text) and not LONE_ZERO.search(text):
        readings.append(lambda: tokenize(text.replace(",", "."), letters=letters))
    if not COUNTING.isdisjoint(text) and COUNTED.search(text) and (counted := write_as_binomials(tokens)) is not None:
        readings.append(lambda: counted)
    values = []
    for read in readings:
        try:
            values.append(_parse_value(read(), letters))
        except (UnreadableError, OverBoundError, RecursionError):
            continue
    return values


def _parse_value(tokens: list[Token], letters: Letters) -> Node:
    if (based := read_based(tokens)) is not None:
        return based
    if letters != "variables" and (word := _read_word(tokens)) is not None:
        return word
    if (words := _read_phrase(tokens) or _read_repeated(tokens)) is not None:
        return words
    return parse(tokens, letters == "units")


def _read_word(tokens: list[Token]) -> Node | None:
    """Read adjacent letters on their own as a word, never as a product of letters."""
    if len(tokens) < 2 or any(token.kind != "letter" for token in tokens) or any(token.spaced for token in tokens[1:]):
        return None
    word = "".join(token.text for token in tokens).casefold()
    if len(word) <= 3 and not set(word) & VOWELS:
        return None
    return Node("text", word) if len(word) > 2 or word in SHORT_WORDS else None


def _read_phrase(tokens: list[Token]) -> Node | None:
    """Read a number in words, with words after it, as a text; it becomes a number only if the other side is one."""
    if len(tokens) < 2 or tokens[0].kind != "word":
        return None
    words = [token.text.casefold() for token in tokens]
    ends = range(min(len(words), 2 * MAX_WORDS), 1, -1)
    end = next((end for end in ends if words[end - 1] not in {"-", "and"} and read_number(words[:end])), None)
    if end is None or any(token.kind != "word" for token in tokens[end:]):
        return None
    return Node("text", " ".join(word for word in words if word != "-"))


def _read_repeated(tokens: list[Token]) -> Node | None:
    """Read 5 (five) and five (5), one number in digits and in words."""
    texts = [token.text.casefold() for token in tokens]
    if len(tokens) < 4 or texts[-1] != ")" or "(" not in texts:
        return None
    opening = texts.index("(")
    for digits, words in ((tokens[:opening], texts[opening + 1 : -1]), (tokens[opening + 1 : -1], texts[:opening])):
        if len(digits) == 1 and digits[0].kind == "number" and parse_digits(digits[0].text) == read_number(words):
            return make_number(parse_digits(digits[0].text))
    return None


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
