"""Numbers in words: two hundred and five, twenty-first, two thirds."""

from __future__ import annotations

import re
from fractions import Fraction

from qed.grading.vocabulary import MULTIPLES, NUMBER_WORDS

ORDINAL_WORDS = {
    "first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12,
}  # fmt: skip
ORDINAL_WORDS |= {
    (word[:-1] + "ieth" if word.endswith("y") else word + "th"): value
    for word, value in NUMBER_WORDS.items()
    if value not in {1, 2, 3, 5, 8, 9, 12}
}
DENOMINATORS = {word: Fraction(1, value) for word, value in ORDINAL_WORDS.items() if value > 2}
DENOMINATORS |= {"half": Fraction(1, 2), "quarter": Fraction(1, 4)}
DENOMINATORS |= {word + "s": part for word, part in DENOMINATORS.items()} | {"halves": Fraction(1, 2)}
LARGE = {word: value for word, value in MULTIPLES.items() if value >= 1_000}
VOCABULARY = NUMBER_WORDS.keys() | MULTIPLES.keys() | ORDINAL_WORDS.keys() | DENOMINATORS.keys() | {"and", "a", "-"}
MAX_WORDS = 20
# 2 and a half, with the integer and the fraction as groups; not 2 and a half of them.
MIXED = re.compile(
    r"(?<![\d.,/])(\d{1,9}) and (?:a|one)[ -](half|third|quarter)(?![\w-])"
    r"(?! (?:of|is|are|was|were|remain\w{0,3})(?!\w))",
    re.IGNORECASE,
)


def read_number(words: list[str]) -> Fraction | None:
    """Read a number in words; None if the words are not a number."""
    words = [word for word in words if word != "-"]
    if words and words[0] in {"minus", "negative"}:
        positive = read_number(words[1:]) if words[1:2] not in (["minus"], ["negative"]) else None
        return None if positive is None else -positive
    if not words or len(words) > MAX_WORDS or not set(words) <= VOCABULARY:
        return None
    *before, last = words
    if last in DENOMINATORS and (not before or last not in ORDINAL_WORDS or _read_cardinal(before) in range(1, 10)):
        count = _read_cardinal(before) if before not in ([], ["a"]) else 1
        if before or last == "half":
            return _read_mixed(words) if count is None else count * DENOMINATORS[last]
    if last in ORDINAL_WORDS:
        above = _read_cardinal(before) if before else 0
        unit = ORDINAL_WORDS[last]
        if above is None:
            return _read_mixed(words)
        return None if above and above % (10 if unit < 10 else 100) else Fraction(above + unit)
    value = _read_cardinal(words)
    return None if value is None else Fraction(value)


def _read_mixed(words: list[str]) -> Fraction | None:
    """Read two and a half, five and three quarters: an integer and a proper fraction."""
    if "and" not in words:
        return None
    middle = len(words) - 1 - words[::-1].index("and")
    integer = _read_cardinal(words[:middle])
    count, last = words[middle + 1 : -1], words[-1]
    above = 1 if count == ["a"] else _read_cardinal(count)
    part = above * DENOMINATORS[last] if above and last in DENOMINATORS else Fraction(1)
    return integer + part if integer and part < 1 else None


def _read_cardinal(words: list[str]) -> int | None:
    """Read an integer: groups of thousands in descending order."""
    total, group, limit = 0, list[str](), 10**15
    for word in words:
        if word not in LARGE:
            group.append(word)
            continue
        value = 1 if group == ["a"] else _read_below_thousand(group)
        if value is None or LARGE[word] >= limit:
            return None
        total, group, limit = total + value * LARGE[word], [], LARGE[word]
    if not group:
        return total if total else None
    value = _read_below_thousand(group)
    return None if value is None else total + value


def _read_below_thousand(words: list[str]) -> int | None:
    """Read one group: hundreds, tens and ones, in descending order."""
    result, limit, scaled = 0, 100, False
    for index, word in enumerate(words):
        if word == "and" and index:
            continue
        if word == "a" and index == 0 and len(words) > 1:
            result = 1
        elif word in {"hundred", "dozen"} and result and not scaled:
            result, limit, scaled = result * MULTIPLES[word], MULTIPLES[word], True
        elif word in NUMBER_WORDS and NUMBER_WORDS[word] < limit:
            value = NUMBER_WORDS[word]
            result, limit = result + value, 10 if value >= 20 else 1
        else:
            return None
    return result if result or words == ["zero"] else None
