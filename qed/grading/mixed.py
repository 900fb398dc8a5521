"""Rewrite quantities in several units, lengths in feet and inches, and dates in one notation."""

from __future__ import annotations

import re

MAX_CHARS = 60
AMOUNT = r"\d{1,9}(?:\.\d{1,9})?"
UNITS = "days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s|kg|g|mg|km|cm|mm|ft|in|yd|mi|lbs?|oz|l|L|ml|mL"
PART = rf"({AMOUNT}) ?(?:\\text\{{ ?)?({UNITS})(?![A-Za-z])\.? ?\}}?"
COMPOUND = re.compile(rf"{PART}(?:,? (?:and )?|)?{PART}(?:(?:,? (?:and )?|)?{PART})?")
FEET = re.compile(rf"({AMOUNT}) ?\^?\{{?(?:'|\\prime)\}}? ?({AMOUNT}) ?(?:\"|''|\^\{{?\\prime ?\\prime\}}?)")
MONTHS = "january february march april may june july august september october november december".split()  # noqa: SIM905
MONTH = "(" + "|".join(f"{name}|{name[:3]}" for name in MONTHS) + r"|sept)\.?"
DAY = r"(\d{1,2})(?:st|nd|rd|th|\.)?"
YEAR = r"(?:,? (\d{4}))?"
DATES = (
    re.compile(rf"()(?:the )?{DAY} (?:of )?{MONTH}{YEAR}", re.IGNORECASE),
    re.compile(rf"{MONTH} (?:the )?{DAY}(){YEAR}", re.IGNORECASE),
)
WHOLE_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox) ?\{([^{}]*)\}")
TEXT_STARTS = ("\\text", "\\mathrm", "\\mbox")
TIMES = {"noon": "12:00 pm", "12 noon": "12:00 pm", "midnight": "12:00 am", "12 midnight": "12:00 am"}
# Points as thousands separators: a second point or a decimal comma shows that they are not decimal points.
POINTS = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3}){2,30}|\d{1,3}(?:\.\d{3}){1,30}(?=,\d))(?:,(\d{1,30}))?(?![\d.,])")


def rewrite_mixed(text: str) -> str:
    """Rewrite `2 h 15 min`, `5'4"`, `21st of March`, `noon` and `1.234,56`; any other text is returned as it is."""
    if "." in text and text.count(".") + text.count(",") > 1:
        text = POINTS.sub(_remove_points, text)
    first = text[:1]
    if len(text) > MAX_CHARS or not (first.isalnum() or text.startswith(TEXT_STARTS)) or text.isdigit():
        return text
    if first.isdigit():
        if (match := COMPOUND.fullmatch(text)) is not None:
            return _rewrite_compound(match)
        if (match := FEET.fullmatch(text)) is not None:
            return rf"{match[1]}\text{{ feet }}{match[2]}\text{{ inches}}"
    plain = text if first != "\\" else WHOLE_TEXT.sub(r"\1", text).strip()
    if plain.casefold() in TIMES:
        return rf"\text{{{TIMES[plain.casefold()]}}}"
    return (_rewrite_date(plain) if " " in plain else "") or text


def _remove_points(match: re.Match[str]) -> str:
    return match[1].replace(".", "") + (f".{match[2]}" if match[2] else "")


def _rewrite_compound(match: re.Match[str]) -> str:
    """Write units as upright text; next to hours or seconds, m means minutes."""
    amounts = [part for part in match.groups()[::2] if part]
    units = [part for part in match.groups()[1::2] if part]
    if any(unit[0] in "hds" for unit in units):
        units = ["min" if unit == "m" else unit for unit in units]
    units = ["day" if unit == "d" else unit for unit in units]
    return " ".join(rf"{amount}\text{{ {unit} }}" for amount, unit in zip(amounts, units, strict=True))


def _rewrite_date(text: str) -> str:
    """Return a date as month, day and year; an empty text if it is not a date."""
    for shape in DATES:
        if (match := shape.fullmatch(text)) is not None:
            first, second, third, year = match.groups()
            month, day = (third, second) if first == "" else (first, second)
            name = next(name for name in MONTHS if name.startswith(month[:3].lower()))
            return rf"\text{{{name} {int(day)}" + (f", {year}}}" if year else "}")
    return ""
