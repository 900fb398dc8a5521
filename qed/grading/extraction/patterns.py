"""Find the answer of a text by a user-defined regular expression, like the filters of other evaluators."""

from __future__ import annotations

from functools import lru_cache

import regex

from qed.grading.extraction.outcome import Extracted, Refusal

LAST, FIRST = "regex:", "first-regex:"
PREFIXES = {LAST: -1, FIRST: 0}  # which match counts
SECONDS = 2.0  # for one text, because a pattern may take exponential time


def is_pattern(mode: str) -> bool:
    """Return whether a mode of extraction is a regular expression: `regex:PATTERN` or `first-regex:PATTERN`."""
    return mode.startswith(tuple(PREFIXES))


def check_pattern(mode: str) -> None:
    """Check the regular expression of a mode.

    Raises:
        ValueError: it is empty or does not compile; the message says where.
    """
    _compile(mode)


def find_by_pattern(text: str, mode: str) -> Extracted | Refusal:
    """Find the answer: the first group that is not empty of the last (or first) match, or the whole match.

    Args:
        text: the response.
        mode: `regex:PATTERN` for the last match, `first-regex:PATTERN` for the first one.
    """
    pattern, which = _compile(mode)
    try:
        matches = list(pattern.finditer(text, timeout=SECONDS))
    except TimeoutError:
        return Refusal(f"the regular expression took more than {SECONDS:g} s")
    if not matches:
        return Refusal("the regular expression does not match")
    match = matches[which]
    answer = next(filter(None, match.groups()), None) or match.group()
    return Extracted(answer.strip(), "regex") if answer.strip() else Refusal("the regular expression matches nothing")


@lru_cache
def _compile(mode: str) -> tuple[regex.Pattern[str], int]:
    prefix = next(prefix for prefix in PREFIXES if mode.startswith(prefix))
    pattern = mode.removeprefix(prefix)
    if not pattern:
        raise ValueError("the regular expression is empty")
    try:
        return regex.compile(pattern), PREFIXES[prefix]
    except regex.error as error:
        raise ValueError(f"the regular expression {pattern} does not compile: {error}") from error
