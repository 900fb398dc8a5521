"""Reasons behind an answer that has no value: B, since x = 3. A number in the reason is not the answer."""

from __future__ import annotations

import re

from qed.grading.extraction import words

# Words of a reason. Some begin one only after a pause, as elsewhere they are other words: as, for, da, car.
REASON = re.compile(
    r"(?:\s?[,;(—–-]\s?|\s|(?<=[*$)]))(?:since|because|given that|weil|denn|parce que|puisque|porque|ya que|puesto que|"
    r"perché|poiché|потому что|так как|поскольку)(?!\w)"
    r"|\s?[,;—–]\s?(?:as(?! (?:well|follows))|for(?! (?:example|instance|all|which))|da|car|pois)(?!\w)"
    r"|[，,；]?\s?(?:因为|因為|由于|由於)",
    re.IGNORECASE,
)
LETTER = re.compile(
    r"[\s*]{0,4}(?:(?:option|choice) )?(?:\$\s?)?(?P<written>\(?(?P<letter>[A-J])\)?)(?:\s?\$)?\*{0,2}(?![\w'’])"
)
# What may follow a letter besides a reason: B, so x = 12; B, which is 12; B as 3 is prime.
AFTER_LETTER = re.compile(
    r",\s?(?:so|where|not|i\.e\.|which(?! (?:cannot|can't|isn't|is (?:not|wrong|incorrect|false|impossible))))(?!\w)"
    r"|\sas(?!\w)",
    re.IGNORECASE,
)
# B, since x = 3, is wrong; A for n = 3 and B for n = 4.
TAKEN_BACK = re.compile(
    r",\s?(?:is|was) (?:not|wrong|incorrect|false)(?!\w)|(?<!\w)and \(?[A-J]\)? (?:for|if|when)(?!\w)"
)
OTHER_LETTER = re.compile(r"(?<!\w)(?:or|but|instead)\b.{0,40}?(?<![\w$\\])\(?([A-J])\)?(?![\w'’])")
WHICH_IS = re.compile(r",\s?which (?:is|equals)(?!\w)")
MAX_TEXT_CHARS = 1_000


def find_letter_before_reason(text: str) -> str | None:
    """Return the letter of an option at the beginning of an announced answer, if its reason follows.

    None where the letter is the name of a value: C, since C = 3; and where the text hedges or names another letter.
    """
    match = LETTER.match(text)
    if match is None:
        return None
    rest = text[match.end() :][:MAX_TEXT_CHARS]
    if REASON.match(rest) is None and AFTER_LETTER.match(rest) is None:
        return None
    letter, written = match["letter"], match["written"]
    if written == letter and _has_value(match.group(), letter, rest):
        return None
    if (
        words.HEDGE.search(rest)
        or TAKEN_BACK.search(rest)
        or any(other != letter for other in OTHER_LETTER.findall(rest))
    ):
        return None
    return written if written.startswith("(") == written.endswith(")") else letter


def _has_value(written: str, letter: str, text: str) -> bool:
    """Return whether a text gives a letter a value: C = 3, C is 3, where C is the area; also $C$, which is 3."""
    given = rf"(?<![A-Za-z\\]){letter}\$?\s?(?:[=≈<>≤≥]|\\approx|equals|is \$?-?\d)|where \$?{letter}(?![\w'’])"
    return re.search(given, text) is not None or ("$" in written and WHICH_IS.match(text) is not None)


def split_reason(text: str) -> tuple[str, str]:
    """Split a text before its first reason, which is empty if there is none."""
    match = REASON.search(text)
    return (text, "") if match is None else (text[: match.start()], text[match.start() :])


def cut_reason_with_number(text: str) -> str:
    """Cut a text before its reason, if that holds a number: (B) 12, since x = 3."""
    before, reason = split_reason(text)
    return before if before.strip() and any(sign.isdigit() for sign in reason) else text
