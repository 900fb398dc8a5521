"""A position in a list of tokens, with the nesting depth around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qed.grading.bounds import MAX_DEPTH, OverBoundError, UnreadableError
from qed.grading.tokens import Token
from qed.grading.tree import Node

END = Token("end", "")


@dataclass
class Cursor:
    """Reads tokens one by one; `parse_inner` parses the content of brackets, which may be a list."""

    tokens: list[Token]
    parse_inner: Callable[[Cursor], Node]
    letter_units: bool = False
    """Whether a single letter after a number is a unit: 5 m."""
    position: int = 0
    depth: int = 0
    bars: list[int] = field(default_factory=list)
    """The depths of the open | … |."""

    def peek(self, ahead: int = 0) -> Token:
        """Return the token at an offset from the next one, or END outside of the text."""
        index = self.position + ahead
        try:
            return self.tokens[index] if index >= 0 else END
        except IndexError:  # so rare that checking the length first would be slower
            return END

    @property
    def text(self) -> str:
        """The text of the next token."""
        try:
            return self.tokens[self.position].text
        except IndexError:
            return ""

    def take(self) -> Token:
        """Return the next token and move past it.

        Raises:
            UnreadableError: no token is left.
        """
        token = self.peek()
        if token is END:
            raise UnreadableError("the text ends too early")
        self.position += 1
        return token

    def accept_any(self, *texts: str) -> bool:
        """Move past the next token if it is one of these, and return whether it was."""
        if self.position < len(self.tokens) and self.tokens[self.position].text in texts:
            self.position += 1
            return True
        return False

    def expect(self, *texts: str) -> str:
        """Take the next token, which must be one of these.

        Raises:
            UnreadableError: it is a different one.
        """
        token = self.take()
        if token.text not in texts:
            raise UnreadableError(f"{texts[0]} was expected, not {token.text}")
        return token.text

    def expect_end(self) -> None:
        """Check that no token is left.

        Raises:
            UnreadableError: a token is left.
        """
        if self.position < len(self.tokens):
            raise UnreadableError(f"{self.text} was not expected")

    def nest(self) -> Cursor:
        """Enter one level of nesting; use it in a `with` statement, whose end leaves the level.

        Raises:
            OverBoundError: the text is nested too deeply.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise OverBoundError("nested too deeply")
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.depth -= 1

    def split_first_digit(self) -> None:
        """Split the first digit off the next number: LaTeX reads \\frac12 as one half."""
        token = self.peek()
        if token.kind == "number" and len(token.text) > 1:
            pieces = [token._replace(text=token.text[0]), Token("number", token.text[1:])]
            self.tokens[self.position : self.position + 1] = pieces


def read_raw_argument(cursor: Cursor) -> str:
    """Return the text of an argument that is not parsed: an index, or a limit of a sum."""
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
