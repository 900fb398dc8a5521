"""Rewrite formulas in words with signs: minus 7, 3 plus 4i, the square root of 2, 2 to the power of 5."""

from __future__ import annotations

import re
from collections.abc import Callable

from qed.grading.spoken import DENOMINATORS, MIXED

OPERAND = r"\$?(?:[\d(\\√π]|[a-z](?![a-z])|sqrt|pi(?![a-z]))"
# Each pattern begins with a fixed word, and is searched only if its first string is in the text.
REWRITES: tuple[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    ("and", MIXED, lambda match: f"{match[1]} {DENOMINATORS[match[2].lower()]}"),
    (
        "root of",
        re.compile(r"(?:the )?(?:positive )?square root of (\d[\d.,]{0,30}|[a-z]\b|\([^()]{1,40}\))"),
        r"sqrt(\1)",
    ),
    ("root of", re.compile(r"(?:the )?cube root of (\d[\d.,]{0,30}|[a-z]\b|\([^()]{1,40}\))"), r"cbrt(\1)"),
    ("power", re.compile(r"(?<=[\w)]) to the power (?:of )?(\d{1,9}|[a-z])\b"), r"^\1"),
    ("power", re.compile(r"(?<=[\w)]) to the (\d{1,9}|[a-z])(?:st|nd|rd|th) power\b"), r"^\1"),
    ("squared", re.compile(r"(?<=[\d)]) squared\b|(?<=\b[a-z]) squared\b"), "^2"),
    ("cubed", re.compile(r"(?<=[\d)]) cubed\b|(?<=\b[a-z]) cubed\b"), "^3"),
    ("times", re.compile(rf"(?<=[\d)]) times (?:the )?(?={OPERAND})(?!(?:the|a|as|more|less)\b)"), " * "),
    ("x", re.compile(r"(?<=[1-9\d]\d) ?[xX] ?(?=\$?\d)|(?<=[1-9]) ?[xX] ?(?=\$?\d)"), " * "),
    (" of ", re.compile(r"(?<=\d)% of (?=\$?\d[\d.,]{0,20} ?=)"), "/100 * "),
    (" of ", re.compile(r"(?<![\w/.])(\d{1,9}/\d{1,9}) of (?=\$?\d[\d.,]{0,20} ?=)"), r"\1 * "),
    ("alf of ", re.compile(r"\b[Hh]alf of (?=\$?\d[\d.,]{0,20} ?=)"), "1/2 * "),
    ("multiplied", re.compile(rf"(?<=[\d)]) multiplied by (?={OPERAND})"), " * "),
    ("divided", re.compile(r"(?<=[\d)]) divided by (?=\$?[\d(])"), " / "),
    ("over", re.compile(r"(?<=\d) over (?=\d)"), "/"),
    ("plus", re.compile(r"(?<=[\d)]) plus (?=[\d(√\\]|[a-z]\b|sqrt)|(?<=\b[a-z]) plus (?=\d|[a-z]\b)"), " + "),
    ("minus", re.compile(r"(?<=[\d)]) minus (?=[\d(√\\]|[a-z]\b|sqrt)|(?<=\b[a-z]) minus (?=\d|[a-z]\b)"), " - "),
    ("plus or -", re.compile(r"\bplus or -(?=\d)"), "±"),
)
SIGN = re.compile(
    r"\b(?:minus|negative|минус|menos|moins|meno) (?=[\d(√\\$.])|(?:负|負|マイナス|마이너스) ?(?=\$?[\d(√\\.])",
    re.IGNORECASE,
)
MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December|"
    r"Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.?"
)
DATE = re.compile(
    rf"\b{MONTH} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?\b|\b\d{{1,2}}(?:st|nd|rd|th)? {MONTH}(?:,? \d{{4}})?\b"
)


def write_formulas(text: str) -> str:
    """Rewrite the spoken formulas of a sentence with signs."""
    for mark, pattern, replacement in REWRITES:
        if mark in text:
            text = pattern.sub(replacement, text)
    return SIGN.sub("-", text)
