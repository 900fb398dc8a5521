"""The final answer in a text. Every search is linear in the text's length, whatever the text."""

from __future__ import annotations

import re

BOX = "\\boxed{"
# An escaped sign is no brace. Each alternative begins in its own way, so the search never goes back.
BRACES = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)


def between(text: str, opening: str, closing: str) -> str | None:
    """What stands between the last `opening` and the next `closing` behind it, stripped; None where either is
    missing."""
    start = text.rfind(opening)
    if start < 0:
        return None
    start += len(opening)
    end = text.find(closing, start)
    return text[start:end].strip() if end >= 0 else None


def last_boxed(text: str) -> str | None:
    r"""The content of the complete `\boxed{…}` that begins last, braces matched; None where there is none."""
    opened: list[int] = []  # where the content of each open brace begins, or -1 for a brace that opens no box
    begin, end = -1, -1
    for sign in BRACES.finditer(text):
        if sign.group() == "}":
            start = opened.pop() if opened else -1
            if start > begin:
                begin, end = start, sign.start()
        elif sign.group() == "{":
            opened.append(-1)
        elif sign.group() == BOX:
            opened.append(sign.end())
    return text[begin:end].strip() if begin >= 0 else None
