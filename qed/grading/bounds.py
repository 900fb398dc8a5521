"""Limits on the cost of a verdict.

They limit counts and sizes and are checked before any arithmetic, so a verdict never depends on the machine.
"""

from __future__ import annotations

MAX_ANSWER_CHARS = 4_000  # a longer answer is correct only if it is the same string
MAX_TOKENS = 1_500  # of an answer
MAX_DEPTH = 40  # levels of brackets, exponents and arguments
MAX_ITEMS = 100  # of a list
MAX_BITS = 40_000  # of an integer
MAX_POWER_OF_TEN = 4_000  # 1e4000
MAX_FACTORIAL = 3_000
MAX_SIGNS = 3  # of ± in one expression: eight values
MAX_STEPS = 5_000  # steps of one comparison, each about ten microseconds
MAX_EXPONENT = 100_000  # of an inexact power, as the natural logarithm of the result


class UnreadableError(Exception):
    """Raised when the parser does not know the notation, so the value of the text is unknown."""


class ContradictionError(UnreadableError):
    """Raised when a text contradicts itself, such as x = 41 = 42: it is wrong whatever its notation."""


class OverBoundError(Exception):
    """Raised when a text needs more work than one verdict is allowed."""


class Work:
    """The remaining steps of one comparison."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Use up steps.

        Raises:
            OverBoundError: none are left.
        """
        self.left -= steps
        if self.left < 0:
            raise OverBoundError("too much work")
