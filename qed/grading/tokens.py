"""An answer as tokens: numbers, letters, words, commands and signs. One pass, linear in the text.

Words are kept whole wherever they can be words, so that no name is ever read as a product of letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from qed.grading.bounds import MOST_TOKENS, OverBoundError
from qed.grading.vocabulary import (
    COMMANDS,
    FUNCTION_WORDS,
    IGNORED,
    JOINERS,
    ORDINALS,
    TEXT_COMMANDS,
    UNIT_WORDS,
    WRAPPERS,
)

# Each alternative begins in its own way or has a bounded length before it can fail: nothing here goes back far.
DECIMALS = r"(?:\.\d+)?"
SPACED = r"[1-9]\d{0,2}(?:(?:,\\! ?|\\,|\\ |'| )\d{3})+(?!\d)" + DECIMALS
COMMAS = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d]|,\d)" + DECIMALS
SIMPLE = r"(?:\d+\.\d+|\d+\.(?!\.)|\d+|\.\d+)"
EXPONENT = r"(?:[eE][+-]?\d{1,6}(?![\d.]))?"
REST = (
    r"|(?P<rate>(?:km|cm|mm|ft|mi|kg|m|g|N|J|W|C)/(?:hr|min|mol|cm|kg|s|h|m|L)(?![A-Za-z]))|(?P<half>[aApP]\.\s?[mM]\.?(?![A-Za-z]))|(?P<word>[^\W\d_]+)"
    r"|(?P<environment>\\(?:begin|end)\s?\{\s?[A-Za-z]{1,12}\*?\s?\})|(?P<break>\\\\(?:\[-?[\d.]{1,6} ?[a-z]{2}\])?)"
    r"|(?P<command>\\[A-Za-z]+|\\.)"
    r"|(?P<space>[\s~]+)|(?P<sign>\*\*|<=|>=|!=|==|.)"
)


def _build_scanner(commas: bool, scientific: bool) -> re.Pattern[str]:
    shapes = [SPACED, *([COMMAS] if commas else []), SIMPLE + (EXPONENT if scientific else "")]
    return re.compile(f"(?P<number>{'|'.join(shapes)})" + REST, re.DOTALL | re.ASCII & 0)


SCANNERS = {(commas, exact): _build_scanner(commas, exact) for commas in (False, True) for exact in (False, True)}
PROSE = re.compile(r"[A-Za-z ,.'\-!?]+")
NUMBERED = re.compile(r"[-$\\]{0,2}\d[\d,.]* [A-Za-z][A-Za-z ,.'-]*")  # a number and words behind it
SYMBOL_UNITS = {"\\Omega": "ohm", "\\AA": "angstrom"}
PREFIXED = {"rs", "usd", "eur", "gbp"}  # currencies before a number
LONG_WORD = re.compile(r"[a-z]{4}")
THOUSANDS = re.compile(r"\d,\d{3}(?!\d)")
OPENING, CLOSING = {"(", "[", "\\{"}, {")", "]", "\\}"}
ENDS = {")", "}", "]", "%", "\\}", "\\circ", "\\pi", "|"}


class Token(NamedTuple):
    """What it is, its normal spelling, and whether a space stood before it."""

    kind: str
    text: str
    spaced: bool = False


class Reader:
    """The state of one pass: open braces, whether they hold text, and how deep in brackets we are."""

    def __init__(self, text: str, scientific: bool, commas: bool) -> None:
        self.tokens: list[Token] = []
        self.braces: list[str] = []  # "text", "brace" or "command" for a text command whose brace is not yet open
        self.pending = ""
        self.spaced = False
        self.depth = 0
        self.scientific = scientific
        self.rules: dict[str, Callable[[str], None]] = {
            "number": self.number,
            "word": self.word,
            "sign": self.sign,
            "command": self.command,
            "half": self.half,
            "rate": self.rate,
        }
        # Inside brackets a comma separates, unless other commas there have a space behind them and this one has none.
        self.commas = commas
        worded = PROSE.fullmatch(text) or (NUMBERED.fullmatch(text) and not FUNCTION_WORDS.keys() & set(text.split()))
        self.prose = bool(worded) and LONG_WORD.search(text) is not None
        self.mixed = commas and ", " in text and THOUSANDS.search(text) is not None

    def scanner(self) -> re.Pattern[str]:
        return SCANNERS[self.commas and (self.depth == 0 or self.mixed), self.scientific]

    def in_text(self) -> bool:
        return "text" in self.braces

    def add(self, kind: str, text: str) -> None:
        if len(self.tokens) >= MOST_TOKENS:
            raise OverBoundError("too many tokens")
        self.tokens.append(Token(kind, text, self.spaced))
        self.spaced = False

    def last(self) -> str:
        return self.tokens[-1].text if self.tokens else ""

    def take(self, kind: str, text: str) -> None:
        if kind == "space":
            self.spaced = True
        elif kind in self.rules:
            self.rules[kind](text)
        else:
            self.add("command", "".join(text.split()).replace("*", "") if kind == "environment" else "\\\\")

    def number(self, text: str) -> None:
        self.add("number", "".join(sign for sign in text if sign in "0123456789.eE+-"))

    def half(self, text: str) -> None:
        self.add("word", text[0].lower() + "m")

    def word(self, text: str) -> None:
        lower = text.lower()
        if lower in JOINERS and (len(lower) > 1):
            self.add("joiner", lower)
        elif self.in_text() and self.last() == "\\mu" and self.tokens[-2:-1] and self.tokens[-2].kind == "number":
            self.tokens[-1] = Token("word", "μ" + text, True)
        elif lower in FUNCTION_WORDS and not (lower in UNIT_WORDS and self.after_value()):
            self.add("command", FUNCTION_WORDS[lower])
        elif self.is_word(text):
            self.add("word", text)
        else:
            for letter in text:
                self.add("letter", letter)

    def rate(self, text: str) -> None:
        """m/s is a unit behind a number and a space, else a quotient of letters."""
        above, _, below = text.partition("/")
        unit = self.spaced and self.after_value()
        for part in (above, "/", below):
            if part == "/":
                self.add("sign", part)
            elif unit:
                self.add("word", part)
            else:
                self.word(part)

    def is_word(self, text: str) -> bool:
        """Whether letters stand for a word and not for a product."""
        if self.in_text() or self.prose or not text.isascii():
            return True
        if not self.tokens and text.lower() in PREFIXED:
            return True
        if self.spaced and self.tokens and self.tokens[-1].kind == "word":  # 10 years old
            return True
        if text in {"am", "pm"} and not self.spaced and self.tokens[-2:-1] and self.tokens[-2].text != ":":
            return False
        if len(text) > 1 and (text in UNIT_WORDS or text.lower() in UNIT_WORDS) and self.after_value():
            return True
        if text.lower() in ORDINALS and self.last() in {"^", "{"}:
            return True
        return len(text) > (4 if text.isupper() else 2 if text[1:].islower() and text[0].isupper() else 3)

    def after_value(self) -> bool:
        return bool(self.tokens) and (self.tokens[-1].kind in {"number", "word"} or self.last() in ENDS)

    def command(self, text: str) -> None:
        text = COMMANDS.get(text, text)
        if text in TEXT_COMMANDS:
            self.pending = "text"
            self.spaced = True
        elif text in IGNORED:
            self.spaced = True
        elif text in WRAPPERS:
            pass
        elif text in SYMBOL_UNITS and (self.in_text() or self.after_value()):
            kilo = self.last() == "k" and not self.spaced
            name = (self.tokens.pop().text if kilo else "") + SYMBOL_UNITS[text]
            self.add("word", name)
        elif text.startswith("\\") and text not in {"\\{", "\\}"}:
            self.add("command", text)
        else:
            self.sign(text)

    def sign(self, text: str) -> None:
        if text == "{":
            self.braces.append(self.pending or "brace")
            if not self.pending:
                self.add("sign", text)
            self.pending = ""
            return
        self.pending = ""
        # A brace that closes nothing says nothing, nor does one around text.
        if text == "}" and (self.braces.pop() if self.braces else "text") == "text":
            self.spaced = True
            return
        if text == "}" and self.last() == "{" and self.tokens[-2:-1] and self.tokens[-2].kind in {"number", "letter"}:
            self.tokens.pop()  # 120{}^\\circ
            return
        if text == "." and self.tokens and self.tokens[-1].kind == "word" and len(self.last()) > 1:
            self.spaced = True  # an abbreviation: sq. ft.
            return
        self.depth += (text in OPENING) - (text in CLOSING)
        self.add("sign", text)


def tokenize(text: str, scientific: bool = True, commas: bool = True) -> list[Token]:
    """The tokens of a cleaned text, without a final full stop."""
    reader, place = Reader(text, scientific, commas), 0
    while place < len(text):
        found = reader.scanner().match(text, place)
        if found is None or found.lastgroup is None:
            raise OverBoundError("no token")
        reader.take(found.lastgroup, found.group())
        place = found.end()
    tokens = _replace_crosses(reader.tokens)
    if tokens and tokens[-1].text in {".", ",", ";", "\\\\"}:
        tokens.pop()
    if tokens and tokens[-1].kind == "number" and len(tokens) > 1:
        tokens[-1] = tokens[-1]._replace(text=tokens[-1].text.rstrip("."))
    return tokens


def _replace_crosses(tokens: list[Token]) -> list[Token]:
    """The letter x between two numbers is a multiplication sign."""
    for place in range(1, len(tokens) - 1):
        here, after = tokens[place], tokens[place + 1]
        beside = here.text == "x" and tokens[place - 1].kind == after.kind == "number"
        if beside and (after.text == "10" or (here.spaced and after.spaced)):
            tokens[place] = Token("sign", "*")
    return tokens


def build_key(tokens: list[Token]) -> str:
    """The tokens as one string: equal keys are equal answers. Braces around a single token say nothing."""
    words: list[str] = []
    for token in tokens:
        if token.text == "}" and len(words) > 1 and words[-2] == "{":
            words[-2:] = [words[-1]]
        else:
            words.append(token.text.casefold() if token.kind == "word" else token.text)
    return " ".join(words)
