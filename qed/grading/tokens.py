"""Tokenizer of answers: numbers, letters, words, commands and signs, in one pass, linear in the length of the text.

Letters that can be a word stay one token, so that no name is read as a product of letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from qed.grading.bounds import MAX_TOKENS, OverBoundError
from qed.grading.vocabulary import (
    CASED_UNITS,
    COMMANDS,
    FUNCTION_WORDS,
    FUNCTIONS,
    GLUED_UNITS,
    IGNORED,
    JOINERS,
    ORDINALS,
    RELATIONS,
    SHORT_NOUNS,
    SPACED_UNITS,
    SYMBOLS,
    TEXT_COMMANDS,
    UNIT_WORDS,
    WRAPPERS,
)

# Each alternative begins differently or has a bounded length before it can fail, which bounds backtracking.
DECIMALS = r"(?:\.\d+)?"
SPACED = r"[1-9]\d{0,2}(?:(?:,\\! ?|\\,|\\ |'|~| )\d{3})+(?!\d)" + DECIMALS
COMMAS = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d]|,\d)" + DECIMALS
SIMPLE = r"(?:\d+\.\d+|\d+\.(?!\.)|\d+|\.\d+)"
EXPONENT = r"(?:[eE][+-]?\d{1,6}(?!\d|\.\d))?"
REST = (
    r"|(?P<rate>(?:km|cm|mm|ft|mi|kg|mol|m|g|N|J|W|C)/(?:hr|min|mol|cm|kg|s|h|m|L)(?![A-Za-z]))|(?P<half>[aApP]\.\s?[mM]\.?(?![A-Za-z]))|(?P<word>[^\W\d_]+)"
    r"|(?P<environment>\\(?:begin|end)\s?\{\s?[A-Za-z]{1,12}\*?\s?\})|(?P<break>\\\\(?:\[-?[\d.]{1,6} ?[a-z]{2}\])?)"
    r"|(?P<command>\\[A-Za-z]+|\\.)"
    r"|(?P<space>[\s~]+)|(?P<sign>\*\*|<=|>=|!=|==|.)"
)


def _build_scanner(commas: bool, scientific: bool) -> re.Pattern[str]:
    shapes = [SPACED, *([COMMAS] if commas else []), SIMPLE + (EXPONENT if scientific else "")]
    return re.compile(f"(?P<number>{'|'.join(shapes)})" + REST, re.DOTALL)


SCANNERS = {(commas, exact): _build_scanner(commas, exact) for commas in (False, True) for exact in (False, True)}
PROSE = re.compile(r"[A-Za-z ,.'\-!?]+")
NUMBERED = re.compile(r"[-$\\]{0,2}\d[\d,.]* [A-Za-z][A-Za-z ,.'-]*")  # a number and words after it
SYMBOL_UNITS = {"\\Omega": "ohm", "\\AA": "angstrom"}
PREFIXED = {"rs", "usd", "eur", "gbp"}  # currencies before a number
VOWELS = set("aeiouy")
TITLES = ("Mr. ", "Mrs. ", "Ms. ", "Dr. ")
LONG_WORD = re.compile(rf"[a-z]{{4}}|[a-z] (?:{'|'.join(sorted(SHORT_NOUNS))})(?![A-Za-z])")  # red men
THOUSANDS = re.compile(r"\d,\d{3}(?!\d)")
OPENING, CLOSING = {"(", "[", "\\{"}, {")", "]", "\\}"}
ENDS = {")", "}", "]", "%", "\\}", "\\circ", "\\pi", "|"}


# How italic letters after a number are read: as units where they clearly are, wherever they can be, or never.
Letters = Literal["plain", "units", "variables"]


class Token(NamedTuple):
    """A token: its kind, its normalised text, and whether a space precedes it."""

    kind: str
    text: str
    spaced: bool = False


class Reader:
    """The state of one pass: the open braces, whether they contain text, and the depth of brackets."""

    def __init__(self, text: str, scientific: bool, commas: bool, letters: Letters) -> None:
        self.letters = letters
        self.tokens: list[Token] = []
        self.braces: list[str] = []  # "text" for the brace of a text command, else "brace"
        self.pending = ""
        self.spaced = False
        self.depth = 0
        self.scientific = scientific
        self.rules: dict[str, Callable[[str], None]] = {
            "number": self.add_number,
            "word": self.add_word,
            "sign": self.add_sign,
            "command": self.add_command,
            "half": self.add_day_half,
            "rate": self.add_rate,
        }
        # Inside brackets a comma is a separator, unless other commas have a space after them and this one has none.
        self.commas = commas
        worded = PROSE.fullmatch(text) or (NUMBERED.fullmatch(text) and not FUNCTION_WORDS.keys() & set(text.split()))
        self.prose = bool(worded) and (LONG_WORD.search(text) is not None or text.startswith(TITLES))
        self.mixed = commas and ", " in text and THOUSANDS.search(text) is not None

    def choose_scanner(self) -> re.Pattern[str]:
        """Return the pattern of the next token, which depends on the brackets around it."""
        return SCANNERS[self.commas and (self.depth == 0 or self.mixed), self.scientific]

    def is_in_text(self) -> bool:
        """Return whether the position is inside a text command."""
        return "text" in self.braces

    def add(self, kind: str, text: str) -> None:
        """Append a token.

        Raises:
            OverBoundError: there are too many.
        """
        if len(self.tokens) >= MAX_TOKENS:
            raise OverBoundError("too many tokens")
        self.tokens.append(Token(kind, text, self.spaced))
        self.spaced = False

    def get_last(self) -> str:
        """Return the text of the last token."""
        return self.tokens[-1].text if self.tokens else ""

    def read_match(self, kind: str, text: str) -> None:
        """Process one match of the scanner."""
        if kind == "space":
            self.spaced = True
        elif kind in self.rules:
            self.rules[kind](text)
        else:
            self.add("command", "".join(text.split()).replace("*", "") if kind == "environment" else "\\\\")

    def add_number(self, text: str) -> None:
        """Add a number without thousands separators."""
        self.add("number", "".join(sign for sign in text if sign in "0123456789.eE+-"))

    def add_day_half(self, text: str) -> None:
        """Add a.m. or p.m. as a word."""
        self.add("word", text[0].lower() + "m")

    def add_word(self, text: str) -> None:
        """Add letters as a joiner, a function, a word, or single letters."""
        lower = text.lower()
        if lower in JOINERS and (len(lower) > 1):
            self.add("joiner", lower)
        elif (
            self.is_in_text() and self.get_last() == "\\mu" and self.tokens[-2:-1] and self.tokens[-2].kind == "number"
        ):
            self.tokens[-1] = Token("word", "μ" + text, True)
        elif lower in FUNCTION_WORDS and not (lower in UNIT_WORDS and self.follows_value()):
            self.add("command", FUNCTION_WORDS[lower])
        elif self.is_word(text):
            self.add("word", text)
        else:
            for letter in text:
                self.add("letter", letter)

    def add_rate(self, text: str) -> None:
        """Add m/s: as a unit after a number and a space, else as a quotient of letters."""
        above, _, below = text.partition("/")
        unit = self.spaced and self.follows_value() and self.may_be_unit("km/h")
        for part in (above, "/", below):
            if part == "/":
                self.add("sign", part)
            elif unit:
                self.add("word", part)
            else:
                self.add_word(part)

    def is_word(self, text: str) -> bool:
        """Return whether letters are a word and not a product."""
        if self.is_in_text() or self.prose or not text.isascii():
            return True
        if not self.tokens and text.lower() in PREFIXED:
            return True
        if self.spaced and self.tokens and self.tokens[-1].kind == "word":  # 10 years old
            return True
        if text in {"am", "pm"} and not self.spaced and self.tokens[-2:-1] and self.tokens[-2].text != ":":
            return False
        if len(text) > 1 and (text in UNIT_WORDS or text.lower() in UNIT_WORDS) and self.follows_value():
            return len(text) > 3 or self.may_be_unit(text)
        if text.lower() in ORDINALS and self.get_last() in {"^", "{"}:
            return True
        if len(text) == 3 and text[0].isupper() and not VOWELS & set(text.lower()):  # Bqv
            return False
        return len(text) > (4 if text.isupper() else 2 if text[1:].islower() and text[0].isupper() else 3)

    def may_be_unit(self, text: str) -> bool:
        """Return whether italic letters after a value are a unit: a common symbol after a number without names."""
        if self.letters != "plain":
            return self.letters == "units"
        if text in ORDINALS:
            return not self.spaced and self.tokens[-1].kind == "number" and text == find_ordinal(self.get_last())
        if text.lower() in {"am", "pm"} and self.tokens[-2:-1] and self.tokens[-2].text == ":":
            return True
        apart = self.spaced and (len(text) > 2 or all(token.kind != "command" for token in self.tokens))
        return text in (SPACED_UNITS if apart else GLUED_UNITS) and not self.follows_name()

    def follows_name(self) -> bool:
        """Return whether the value before the position contains a name or a function."""
        for index in reversed(range(len(self.tokens))):
            token = self.tokens[index]
            if token.text == "x" and index and self.tokens[index - 1].kind == self.tokens[index + 1].kind == "number":
                continue  # 3 x 10^8
            if token.kind == "letter" or token.text in SYMBOLS or token.text in FUNCTIONS:
                return True
            if token.kind == "joiner" or token.text in RELATIONS or token.text in {",", ";"}:
                return False
        return False

    def follows_value(self) -> bool:
        """Return whether the last token can end a value, so that a unit may follow."""
        return bool(self.tokens) and (self.tokens[-1].kind in {"number", "word"} or self.get_last() in ENDS)

    def ends_factorial(self) -> bool:
        """Return whether != directly follows a number or a bracket, without names: 5!=120, but x-1!=0."""
        closed = bool(self.tokens) and (self.tokens[-1].kind == "number" or self.get_last() == ")")
        return closed and not self.spaced and not self.follows_name()

    def add_command(self, text: str) -> None:
        """Add a LaTeX command, or remember that it opens text."""
        text = COMMANDS.get(text, text)
        if text in TEXT_COMMANDS:
            self.pending = "text"
            self.spaced = True
        elif text in IGNORED:
            self.spaced = True
        elif text in WRAPPERS:
            pass
        elif text in SYMBOL_UNITS and (self.is_in_text() or self.follows_value()):
            kilo = self.get_last() == "k" and not self.spaced
            name = (self.tokens.pop().text if kilo else "") + SYMBOL_UNITS[text]
            self.add("word", name)
        elif text.startswith("\\") and text not in {"\\{", "\\}"}:
            self.add("command", text)
        else:
            self.add_sign(text)

    def add_sign(self, text: str) -> None:
        """Add a sign, and track braces and brackets."""
        if text == "{":
            self.braces.append(self.pending or "brace")
            if not self.pending:
                self.add("sign", text)
            self.pending = ""
            return
        self.pending = ""
        # Drop an unmatched closing brace, and one around text.
        if text == "}" and (self.braces.pop() if self.braces else "text") == "text":
            self.spaced = True
            return
        if (
            text == "}"
            and self.get_last() == "{"
            and self.tokens[-2:-1]
            and self.tokens[-2].kind in {"number", "letter"}
        ):
            self.tokens.pop()  # 120{}^\\circ
            return
        if text == "." and self.tokens and self.tokens[-1].kind == "word" and len(self.get_last()) > 1:
            self.spaced = True  # an abbreviation: sq. ft.
            return
        if text == "!=" and self.ends_factorial():
            self.add("sign", "!")
            text = "="
        self.depth += (text in OPENING) - (text in CLOSING)
        self.add("sign", text)


def find_ordinal(digits: str) -> str:
    """Return the ending of an ordinal: st after 21, th after 11."""
    if digits[-2:-1] == "1":
        return "th"
    return {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1:], "th")


def tokenize(text: str, scientific: bool = True, commas: bool = True, letters: Letters = "plain") -> list[Token]:
    """Split a cleaned text into tokens, without a final full stop.

    Raises:
        OverBoundError: there are too many.
    """
    reader, index = Reader(text, scientific, commas, letters), 0
    while index < len(text):
        match = reader.choose_scanner().match(text, index)
        if match is None or match.lastgroup is None:
            raise OverBoundError("no token begins here")
        reader.read_match(match.lastgroup, match.group())
        index = match.end()
    tokens = _replace_crosses(reader.tokens)
    if tokens and tokens[-1].text in {".", ",", ";", "\\\\"}:
        tokens.pop()
    if tokens and tokens[-1].kind == "number" and len(tokens) > 1:
        tokens[-1] = tokens[-1]._replace(text=tokens[-1].text.rstrip("."))
    return tokens


def _replace_crosses(tokens: list[Token]) -> list[Token]:
    """Replace the letter x between two numbers by a multiplication sign."""
    for index in range(1, len(tokens) - 1):
        token, after = tokens[index], tokens[index + 1]
        between_numbers = token.text == "x" and tokens[index - 1].kind == after.kind == "number"
        if between_numbers and (after.text == "10" or (token.spaced and after.spaced)):
            tokens[index] = Token("sign", "*")
    return tokens


def build_key(tokens: list[Token]) -> str:
    """Join the tokens to one string: equal keys are equal answers. Braces around a single token are dropped."""
    words: list[str] = []
    for token in tokens:
        if token.text == "}" and len(words) > 1 and words[-2] == "{":
            words[-2:] = [words[-1]]
        else:
            word = token.kind == "word" and token.text not in CASED_UNITS
            words.append(token.text.casefold() if word else token.text)
    return " ".join(words)
