"""What a verdict may cost, fixed in counts and sizes before any arithmetic, so that it never depends on the machine."""

from __future__ import annotations

LONGEST_ANSWER = 4_000  # characters; a longer answer is right only as the same string
MOST_TOKENS = 1_500
DEEPEST = 40  # levels of brackets, exponents and arguments
MOST_ITEMS = 100  # of a list
MOST_BITS = 40_000  # of an integer
LARGEST_TENS = 4_000  # in 1e4000
LARGEST_FACTORIAL = 3_000
MOST_SIGNS = 3  # of ± in one expression: eight values
MOST_WORK = 5_000  # steps of one comparison, each about ten microseconds
LARGEST_EXPONENT = 100_000  # of an inexact power, as the natural logarithm of the result


class UnreadableError(Exception):
    """The text is outside of what the parser knows: nothing is said about its value."""


class OverBoundError(Exception):
    """The text asks for more than a verdict may cost."""


class Work:
    """The steps that one comparison has left."""

    def __init__(self, steps: int = MOST_WORK) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise OverBoundError("too much work")
