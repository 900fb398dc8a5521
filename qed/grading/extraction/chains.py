"""Chains of equations: the value at the end, if the sides agree."""

from __future__ import annotations

import re

from qed.grading.equal import equal
from qed.grading.extraction.outcome import CONTRADICTORY, UNSOLVED, Refusal
from qed.grading.policy import Policy

MAX_SIDES = 8
ARROWS = re.compile(r"\\(?:implies|Rightarrow|Longrightarrow|therefore|iff|Leftrightarrow)(?![A-Za-z])|⇒|∴|⟹|=>")
STEPS = re.compile(r"→|⟶|->|\\(?:to|rightarrow)(?![A-Za-z])")  # arrows that may also be a limit
ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\s?\{(?:align|aligned|alignat|gather|gathered|split|equation|eqnarray|multline)\*?\}"
)
ROW_END = re.compile(r"\\\\(?:\[\d{0,3}\w{0,2}\])?")
RELATION = re.compile(r"\s{0,9}(?:=|\\(?:approx|leq?|geq?|equiv)|[<>≤≥≈])")
# Separators of several statements in one formula, which are not sides of one chain.
SEPARATE = re.compile(
    r"\\(?:text|mathrm|mbox)\s?\{|\\(?:lor|vee|land|wedge|q?quad|or)(?![A-Za-z])|\b(?:or|and|if|for|when)\b"
)
NAMED = re.compile(r"(?P<name>[A-Za-z](?:_\{?\w{1,3}\}?)?)\s?=\s?(?P<value>[^=]{1,200})")
LETTERS = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
# Commands that a number may contain.
NUMERIC = re.compile(r"\\(?:d?t?frac|sqrt|times|cdot|div|pi|left|right|pm|,|!|;|:| |%|\$)")
LOGARITHM = re.compile(r"\\?(?:log|ln|lg)(?![A-Za-z]).{0,9}[a-z]\)?", re.DOTALL)
CALCULATION = re.compile(r"\d[\d.,]{0,20} ?[A-Za-z]{0,3}(?: ?[*/×] ?\d[\d.,]{0,20} ?[A-Za-z]{0,3}){1,6}")
ROUNDED = Policy(rounded_gold=True)


def simplify(text: str, partial: bool = False) -> str | Refusal:
    """Reduce a chain of equations to its name and its last side; refuse a chain of different numbers.

    The first side of a `partial` chain begins before the text: 90 minutes / 450 minutes * 100% = 20%.
    """
    text = _find_last_step(text)
    separate = "\\begin" in text or SEPARATE.search(text)
    sides = [text] if separate else split_sides(text)
    if not 2 <= len(sides) <= MAX_SIDES or not all(sides):
        return text.strip()
    last = sides[-1]
    if partial and _is_number(last):
        return last
    if LOGARITHM.fullmatch(sides[0]) and _is_number(last):
        return Refusal(UNSOLVED)
    if any(not _agree(side, last) for side in sides[:-1]):
        return Refusal(CONTRADICTORY)
    if is_computed(sides) and any(side != last for side in sides):
        return last
    return text.strip() if len(sides) == 2 else f"{sides[0]} = {last}"


def _find_last_step(text: str) -> str:
    """Return the last equation of an alignment, or of several equations joined by arrows."""
    if "\\begin" in text and ENVIRONMENT.search(text):
        text = _join_rows(ENVIRONMENT.sub(" ", text))
    if len(arrows := ARROWS.split(text)) > 1 and arrows[-1].strip():
        text = arrows[-1].strip()
    steps = STEPS.split(text)
    return steps[-1].strip() if len(steps) > 1 and all("=" in step for step in steps) else text


def is_computed(sides: list[str]) -> bool:
    """Return whether a chain begins with a numeric calculation, which may have units: 60g * 4/5."""
    return len(sides) > 1 and (
        _is_number(sides[0]) or (CALCULATION.fullmatch(sides[0]) is not None and _is_number(sides[-1]))
    )


def split_sides(text: str) -> list[str]:
    """Split a formula at the equals signs outside of brackets; a list of equations is not split."""
    depth, start, sides = 0, 0, list[str]()
    for index, sign in enumerate(text):
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif (
            depth <= 0
            and sign in ",;"
            and not text[index + 1 : index + 2].isdigit()
            and text[index - 1 : index] != "\\"
        ):
            return [text]
        elif depth <= 0 and sign == "=" and _is_equality(text[start:index]):
            if text[index + 1 : index + 2] == "=":
                return [text]
            sides.append(text[start:index].replace("&", " ").strip())
            start = index + 1
    return [*sides, text[start:].replace("&", " ").strip()]


def _is_equality(before: str) -> bool:
    """Return whether an equals sign after a side is not the end of another sign: 5!=120, but x!=1."""
    factorial = before[-2:-1].isdigit() or before[-2:-1] == ")"
    return before[-1:] not in ("<", ">", ":", "=", "≤") and (before[-1:] != "!" or (factorial and _is_number(before)))


def _is_number(side: str) -> bool:
    rest = NUMERIC.sub("", side)
    return any(sign.isdigit() for sign in rest) and not any(sign.isalpha() or sign == "\\" for sign in rest)


def _agree(side: str, last: str) -> bool:
    """Return whether two sides can be equal: only numbers are compared, and decimals may be rounded."""
    if not (_is_number(side) and _is_number(last)):
        return True
    last = last.removeprefix("$")
    verdict = equal(last, side)
    if verdict.correct or verdict.tier != "typed":
        return True
    return equal(last, side, ROUNDED).correct or equal(side, last, ROUNDED).correct


def _join_rows(text: str) -> str:
    """Join the rows of an alignment, where a row that begins with a relation continues the one before, and return the
    last equation, or all equations if each gives a different name a value.
    """
    equations: list[str] = []
    for row in ROW_END.split(text):
        row = row.replace("&", " ").strip()
        if equations and RELATION.match(row):
            equations[-1] += f" {row}"
        elif row:
            equations.append(row)
    return join_named(equations) or (equations[-1] if equations else "")


def join_named(equations: list[str]) -> str | None:
    """Return x = 1, y = 2 from equations that each give a different name a value, else None."""
    matches = [NAMED.fullmatch(equation.strip(" .,;$")) for equation in equations]
    found = [match for match in matches if match is not None]
    distinct = len({match["name"] for match in found}) == len(equations) > 1
    plain = all(not re.search(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])", match["value"]) for match in found)
    return ", ".join(match.group() for match in found) if distinct and plain and len(found) == len(matches) else None


def is_derivation(equations: list[str]) -> bool:
    """Return whether the last equation solves the others: 2x = 16 and x = 8."""
    if len(equations) < 2:
        return False
    last = NAMED.fullmatch(chain) if (chain := _first_and_last(equations[-1])) else None
    if last is None or any(NAMED.fullmatch(equation) or "=" not in equation for equation in equations[:-1]):
        return False
    return all(set(LETTERS.findall(equation)) == {last["name"]} for equation in equations[:-1])


def _first_and_last(equation: str) -> str:
    sides = split_sides(equation)
    return f"{sides[0]} = {sides[-1]}" if len(sides) > 1 else ""
