"""Pieces of a sentence: whole expressions, words and punctuation.

An expression keeps its sign, its exponent, its relation and its brackets; it is never cut.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from qed.grading.extraction.sentences import is_money
from qed.grading.extraction.spoken_formulas import DATE
from qed.grading.extraction.words import list_words

# Each alternative begins with a different kind of character, so the search never backtracks far.
TOKEN = re.compile(
    r"(?P<number>\d{1,3}(?:[ \u00a0\u202f\u2009]\d{3})+(?![\d])(?:[.,]\d+)?|\d+(?:[.,:]\d+)*|\.\d+)"
    r"|(?P<command>\\(?:[A-Za-z]+|.))"
    r"|(?P<word>[^\W\d_²³¹⁰-₟]{2,}(?:['’-][^\W\d_²³¹⁰-₟]+)*|[^\W\d_²³¹⁰-₟½-¾](?:['’][^\W\d_]+)?)"
    r"|(?P<space>\s+)"
    r"|(?P<sign>.)",
    re.DOTALL,
)
OPERATORS = frozenset("+-−–*/^=<>≤≥≠≦≧±∓×·⋅÷√∛∜~≈≡∪∩∈→")
BEGINNING = frozenset("-−–+±∓∛<>≤≥≠~≈")
ATTACHED = frozenset("!%‰°′″'²³¹⁰⁴⁵⁶⁷⁸⁹⁻⁺ⁿ½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞_₀₁₂₃₄₅₆₇₈₉")
VALUED = frozenset("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞π∞∅√")
CURRENCY = frozenset("$€£¥₹₽")
OPENED, CLOSED = frozenset({"(", "[", "{", "\\{"}), frozenset({")", "]", "}", "\\}"})
BEGINNING_FORMULAS = BEGINNING | VALUED | CURRENCY | OPENED | {"|"}  # all signs that a formula may begin with
LONGEST_SYMBOL = 4  # letters of a word that is not a function but may be a symbol
FUNCTIONS = list_words(
    "sin cos tan cot sec csc log ln lg exp sqrt cbrt arcsin arccos arctan asin acos atan sinh cosh tanh "
    "gcd lcm max min mod det abs floor ceil pi infinity infty inf choose"
)
COUNTS = list_words("one two three four five six seven eight nine ten")
COMMANDS_OF_PROSE = frozenset({"\\text", "\\textbf", "\\mathrm", "\\mbox", "\\textit", "\\rm"})
DELIMITERS = {"$$": "$$", "$": "$", "\\[": "\\]", "\\(": "\\)"}
OPENING = frozenset("$\\")  # what a delimiter begins with
CONJUNCTIONS = frozenset("and or и или und oder et ou y o e и 和 或 与 및 और या".split())  # noqa: SIM905
SHORT_WORDS = list_words(
    "is in it to of at on as an am pm be by do go he if me my no or so up us we cm mm km kg mg ml ft lb "
    "oz mi hr st nd rd th ok eh oh ah ha hi no de la le el es un et ou se ja da"
)


CACHED_TEXTS = 16  # a clause is read for its prefix, its conjunctions and its values in quick succession


class Piece(NamedTuple):
    """A piece of a sentence: `value` (an expression), `name` (a formula without a value), `word` or `sign`."""

    kind: str
    text: str
    start: int
    end: int
    spaced: bool = False
    """Whether there is a space before it."""


@lru_cache(CACHED_TEXTS)
def read_pieces(text: str) -> tuple[Piece, ...]:
    """Split a sentence into its pieces, in order."""
    return tuple(_merge(_Scanner(text).scan(), text))


class _Scanner:
    """Scans a sentence once from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [(match.lastgroup or "sign", match.group(), match.start()) for match in TOKEN.finditer(text)]
        self.tokens.append(("end", "", len(text)))
        self.index = 0
        self.pieces: list[Piece] = []
        self.unclosed: set[str] = set()
        self.barren = 0
        self.dates = {match.start(): match.end() for match in DATE.finditer(text)}

    def scan(self) -> list[Piece]:
        while (token := self.tokens[self.index])[0] != "end":
            kind, text, start = token
            if kind == "space":
                self.index += 1
            elif kind == "word" and text.casefold() in COUNTS and self.text.startswith(" of ", start + len(text)):
                self.index += 1
                self.add("value", start, start + len(text))  # one of the 5 works
            elif start in self.dates:
                self.add("value", start, self.dates[start])
                self.skip_to(self.dates[start])
            elif not (_may_begin(kind, text) and (self.scan_delimited() or self.scan_bare())):
                self.index += 1
                marks = kind == "sign" and unicodedata.category(text[0])[0] in "PS"
                self.add("sign" if marks else "word", start, start + len(text))
        return self.pieces

    def peek(self, ahead: int = 0) -> tuple[str, str, int]:
        place = self.index + ahead
        return self.tokens[place] if place < len(self.tokens) else self.tokens[-1]

    def add(self, kind: str, start: int, end: int, text: str = "") -> None:
        spaced = start > 0 and self.text[start - 1].isspace()
        self.pieces.append(Piece(kind, text or self.text[start:end], start, end, spaced))

    def scan_delimited(self) -> bool:
        """Scan a formula between delimiters."""
        start = self.peek()[2]
        if self.text[start] not in OPENING:
            return False
        opening = next((sign for sign in DELIMITERS if self.text.startswith(sign, start)), None)
        if opening is None or opening in self.unclosed or (start and self.text[start - 1] == "\\"):
            return False
        closing = DELIMITERS[opening]
        end = self.text.find(closing, start + len(opening))
        if end < 0:
            self.unclosed.add(opening)
            return False
        if opening == "$" and is_money(self.text, start, end):
            return False
        inside = self.text[start + len(opening) : end].strip()
        self.add(classify(inside), start, end + len(closing), inside)
        self.skip_to(end + len(closing))
        return True

    def skip_to(self, position: int) -> None:
        while self.tokens[self.index][2] < position and self.tokens[self.index][0] != "end":
            self.index += 1

    def scan_bare(self) -> bool:
        """Scan the longest expression without delimiters."""
        if self.index < self.barren:
            return False
        first, start = self.index, self.peek()[2]
        last, stack = first, list[str]()
        while self.goes_on(first, stack):
            kind, token, _ = self.peek()
            if token == "\\begin" and self.skip_environment():
                last = self.index
                continue
            self.index += 1
            if token in OPENED:
                stack.append(token)
            elif token in CLOSED and stack:
                stack.pop()
            last = last if kind == "space" else self.index
        if stack:  # an unmatched bracket: only the part before it belongs to the expression
            last = self.find_unmatched(first)
        self.index = last
        end = self.peek()[2]
        return last > first and self.add_bare(first, start, end)

    def goes_on(self, first: int, stack: list[str]) -> bool:
        """Return whether the next token is part of the expression that began at `first`."""
        kind, token, start = self.peek()
        if kind == "end":
            return False
        if kind == "space":
            return bool(stack) or self.continues_after_space(first)
        if token == "$" and self.index > first and (end := self.text.find("$", start + 1)) > 0:
            return is_money(self.text, start, end)  # otherwise it begins a delimited formula
        if stack:
            return self.fits_in_bracket(kind, token, stack[-1])
        return token not in CLOSED and self.belongs(kind, token, first)

    def fits_in_bracket(self, kind: str, token: str, bracket: str) -> bool:
        """Return whether a token can stand in a bracket of an expression, and not in a remark in parentheses."""
        if kind != "word" or len(token) == 1 or bracket in ("{", "\\{") or token in FUNCTIONS:
            return True
        return (token.isascii() and (len(token) <= 2 and token not in SHORT_WORDS)) or self.tokens[self.index - 1][
            0
        ] == "number"

    def skip_environment(self) -> bool:
        r"""Skip a matrix or cases from its `\begin` to its `\end`."""
        start = self.peek()[2]
        end = self.text.find("\\end{", start)
        closed = self.text.find("}", end) if end >= 0 else -1
        if closed >= 0:
            self.skip_to(closed + 1)
        return closed >= 0

    def find_unmatched(self, first: int) -> int:
        stack: list[int] = []
        for index in range(first, self.index):
            token = self.tokens[index][1]
            if token in OPENED:
                stack.append(index)
            elif token in CLOSED and stack:
                stack.pop()
        return stack[0] if stack else self.index

    def add_bare(self, first: int, start: int, end: int) -> bool:
        """Add the expression without the signs that cannot begin or end one; backtrack if nothing is left."""
        text = self.text[start:end].rstrip()
        while text and (text[-1] in "+*/=<>~·≈,;:×÷∈–'" or (text[-1] in "-−" and len(text) > 1)):
            text = text[:-1].rstrip()
        kind = classify(text)
        if kind == "word" or not text:
            self.barren, self.index = self.index, first  # no part of it has a value either
            return False
        self.add(kind, start, start + len(text), text)
        self.skip_to(start + len(text))
        return True

    def belongs(self, kind: str, token: str, first: int) -> bool:
        """Return whether a token can stand in an expression at this place."""
        if kind == "number":
            before = self.tokens[self.index - 1][1][-1] if self.index == first and self.index else " "
            return not (before.isascii() and before.isalpha())  # the 2 of H2O
        if kind == "command":
            return token not in ("\\)", "\\]", "\\(", "\\[")
        return self.is_symbol(token) if kind == "word" else self.is_sign(token, self.index == first)

    def is_sign(self, token: str, begins: bool) -> bool:
        """Return whether a sign can stand in an expression, or begin one."""
        if token in OPENED:
            return token != "[" or self.peek(1)[0] != "word" or len(self.peek(1)[1]) == 1
        if token in CURRENCY:
            return self.peek(1)[0] == "number" or (self.peek(1)[1] == "-" and begins)
        if token in VALUED or token == "|":
            return True
        return token in BEGINNING if begins else token in OPERATORS or token in ATTACHED or token == "&"

    def is_symbol(self, token: str) -> bool:
        """Return whether letters are a symbol or a function of an expression, not a word."""
        before, after = self.tokens[self.index - 1] if self.index else ("space", " ", 0), self.peek(1)
        joined = (before[0] in ("number", "command") or before[1] in OPERATORS or before[1] in ")]}^_(") or (
            after[1] in OPERATORS or after[1] in ("^", "_", "(", "!", "'") or after[0] == "number"
        )
        if after[0] == "space" and self.peek(2)[1] in OPERATORS and self.peek(2)[0] == "sign":
            joined = joined or self.peek(2)[1] not in "-–−" or self.peek(3)[0] in ("space",)
        if before[0] == "space" and self.index > 1 and self.tokens[self.index - 2][1] in OPERATORS:
            joined = True
        if len(token) == 1 and (token.isascii() or "α" <= token <= "ω" or "Α" <= token <= "Ω"):
            return joined or token not in "aAIoOyYeEuU"
        if token in FUNCTIONS:
            return True
        if not token.isascii():
            return joined and all("α" <= sign <= "ω" or sign.isascii() for sign in token) and len(token) <= 3
        attached = before[0] == "number" or before[1] in (")", "]", "}")
        if attached and len(token) <= LONGEST_SYMBOL and token not in CONJUNCTIONS:
            return True
        return len(token) == 2 and joined and token not in SHORT_WORDS and not (after[1] == "'" or "'" in token)

    def continues_after_space(self, first: int) -> bool:
        """Return whether the expression continues after a space."""
        if self.index == first:
            return False
        (before, left, _), (kind, right, _) = self.tokens[self.index - 1], self.peek(1)
        if left.isdigit() and right.isdigit():
            return self.peek(2)[1] == "/" and self.peek(3)[0] == "number"  # 1 3/4
        if kind == "sign" and right in "-–−+":
            # Alice - 5: a dash after a name; 7 - 5 and 7 -5 are differences only with equal spaces
            return self.peek(2)[0] == "space" or left in OPERATORS or left in "({["
        if (left in OPERATORS and before == "sign") or (kind == "sign" and right in OPERATORS):
            return True
        if "command" in (before, kind):
            return left not in COMMANDS_OF_PROSE or kind == "command"
        if kind == "sign":
            closed = left in (")", "]", "}")
            return closed if right in ("(", "[", "{") else right in "%‰°" and (closed or before == "number")
        formula = ("number", "word", "sign")
        return (left in FUNCTIONS or right in FUNCTIONS) and before in formula and kind in formula


def _may_begin(kind: str, token: str) -> bool:
    """Return whether a formula may begin with a token; none begins with long words and most punctuation."""
    if kind == "word":
        return len(token) <= LONGEST_SYMBOL or token in FUNCTIONS
    return kind != "sign" or token in BEGINNING_FORMULAS


def classify(text: str) -> str:
    """Return whether a formula has a `value`, is only a `name`, or is a `word`."""
    if not text or not any(sign.isalnum() or sign in VALUED or sign == "\\" for sign in text):
        return "word"
    if any(sign.isdigit() or sign in VALUED for sign in text) or "\\" in text:
        return "value" if not text.startswith("\\text") or text.count("}") > 0 else "name"
    if any(sign in OPERATORS for sign in text) or text in ("pi", "infinity"):
        return "value"
    inside = text.strip("()[]{}")
    if len(inside) > 1 and inside.isalpha() and len(text) > len(inside):
        return "word"
    return "value" if any(sign in "({[!" for sign in inside) else "name"


def _merge(pieces: list[Piece], text: str) -> list[Piece]:
    """Merge the parts of one expression: $x =$ 5, $x$ = $5$, sqrt of 2, minus 7, 3 plus 4."""
    merged: list[Piece] = []
    for piece in pieces:
        while merged and _joins(merged, piece):
            before = merged.pop()
            whole = text[before.start : piece.end]
            piece = Piece("value", _strip_delimiters(whole), before.start, piece.end, before.spaced)
            if merged and merged[-1].kind == "sign" and merged[-1].text in OPERATORS:
                continue
            break
        merged.append(piece)
    return merged


def _joins(merged: list[Piece], piece: Piece) -> bool:
    before = merged[-1]
    formula = ("value", "name")
    if piece.kind in formula and before.kind in formula:
        return before.text[-1:] in OPERATORS or piece.text[:1] in OPERATORS - {"-", "−", "–"}
    if piece.kind in formula and before.kind == "sign" and before.text in OPERATORS - {"–"}:
        return (len(merged) > 1 and merged[-2].kind in formula) or before.text in "-−<>≤≥"
    return piece.kind == "sign" and before.kind in formula and piece.text in OPERATORS - {"-", "–", "→"}


def _strip_delimiters(text: str) -> str:
    for sign in ("\\(", "\\)", "\\[", "\\]"):
        text = text.replace(sign, " ")
    return (text.replace("$", " ") if text.count("$") % 2 == 0 else text).strip()
