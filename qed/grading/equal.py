"""Are two answers the same? By their normalised strings, or as exact rational numbers.

No text is ever evaluated: a number is recognised by its characters, and its size is bounded before any arithmetic.
"""

from __future__ import annotations

from fractions import Fraction

LONGEST_NUMBER = 200
DIGITS = frozenset("0123456789")


def equal(gold: str, answer: str) -> bool:
    """Whether an answer is the gold answer: equal text after normalisation, or equal rational numbers."""
    left, right = normalised(gold), normalised(answer)
    if left == right:
        return bool(left)
    number = as_number(left)
    return number is not None and number == as_number(right)


def normalised(text: str) -> str:
    """The text without spaces, dollar signs, a final full stop, and commas between thousands."""
    text = "".join(text.split()).replace("\\$", "").replace("$", "").removesuffix(".")
    return _without_thousands(text)


def as_number(text: str) -> Fraction | None:
    """An integer, decimal or simple fraction as an exact number; None for anything else."""
    if not 0 < len(text) <= LONGEST_NUMBER:
        return None
    sign, body = (-1 if text[0] == "-" else 1), text[1:] if text[0] in "+-" else text
    numerator, slash, denominator = body.partition("/")
    whole, point, decimals = numerator.partition(".")
    if not _is_digits(whole + decimals):
        return None
    if slash and (point or not _is_digits(denominator) or int(denominator) == 0):
        return None
    return sign * Fraction(int(whole + decimals), 10 ** len(decimals) * int(denominator or 1))


def _is_digits(text: str) -> bool:
    # str.isdigit accepts superscripts and other scripts' digits, which int() may refuse.
    return bool(text) and DIGITS.issuperset(text)


def _without_thousands(text: str) -> str:
    """12,345 becomes 12345, but 1,2 stays a list of two."""
    sign, body = (text[:1], text[1:]) if text[:1] in ("+", "-") else ("", text)
    whole, point, decimals = body.partition(".")
    first, *rest = whole.split(",")
    if (
        rest
        and 1 <= len(first) <= 3
        and _is_digits(first)
        and all(len(part) == 3 and _is_digits(part) for part in rest)
    ):
        return sign + first + "".join(rest) + point + decimals
    return text
