"""A place in a list of tokens, with the depth of what is open around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from qed.grading.bounds import DEEPEST, OverBoundError, UnreadableError
from qed.grading.tokens import Token
from qed.grading.tree import Node

END = Token("end", "")


@dataclass
class Cursor:
    """Reads tokens one by one; `inside` parses what stands in brackets, which may be a list."""

    tokens: list[Token]
    inside: Callable[[Cursor], Node]
    letter_units: bool = False
    """Whether a single letter behind a number is a unit: 5 m."""
    place: int = 0
    depth: int = 0
    bars: list[int] = field(default_factory=list)
    """The depths at which | … | are open."""

    def peek(self, ahead: int = 0) -> Token:
        place = self.place + ahead
        return self.tokens[place] if 0 <= place < len(self.tokens) else END

    @property
    def text(self) -> str:
        return self.peek().text

    def take(self) -> Token:
        token = self.peek()
        if token is END:
            raise UnreadableError("the text ends too early")
        self.place += 1
        return token

    def accept_any(self, *texts: str) -> bool:
        """Step over one of these, if it is next."""
        if self.peek() is not END and self.text in texts:
            self.place += 1
            return True
        return False

    def expect(self, *texts: str) -> str:
        token = self.take()
        if token.text not in texts:
            raise UnreadableError(f"{texts[0]} was expected, not {token.text}")
        return token.text

    @contextmanager
    def nest(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > DEEPEST:
            raise OverBoundError("nested too deeply")
        yield
        self.depth -= 1

    def split_first_digit(self) -> None:
        """LaTeX reads one digit where an argument has no braces: \\frac12 is one half."""
        token = self.peek()
        if token.kind == "number" and len(token.text) > 1:
            pieces = [token._replace(text=token.text[0]), Token("number", token.text[1:])]
            self.tokens[self.place : self.place + 1] = pieces


def read_raw_argument(cursor: Cursor) -> str:
    """The spelling of an argument that is a name: an index or a limit of a sum."""
    if not cursor.accept_any("{"):
        return cursor.take().text
    words: list[str] = []
    depth = 1
    while True:
        token = cursor.take()
        depth += (token.text == "{") - (token.text == "}")
        if depth == 0:
            return " ".join(words)
        words.append(token.text)
