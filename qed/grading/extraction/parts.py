"""A final answer in labelled parts, in words: (a) … 3 … (b) … 4."""

from __future__ import annotations

import re

# The label of a part at the beginning of a line or after a sentence: (a), a), Part a:, **(b)**.
LABEL = re.compile(
    r"(?:^|\n|(?<=[.;,:] )|(?<=\s))[*#\s]{0,6}(?:(?:[Pp]art|[Qq]uestion|[Tt]eil|[Pp]artie|[Pp]arte) "
    r"\(?(?P<part>[a-h])\)?[:.)]?"
    r"|\((?P<bracket>[a-h])\)|(?P<half>[a-h])\))(?=[\s*:])"
)
MAX_PARTS = 8


def split_parts(text: str) -> list[str]:
    """Return the texts of the labelled parts, or none unless their labels count up from (a) and each occurs once."""
    matches = list(LABEL.finditer(text))
    labels = [match["part"] or match["bracket"] or match["half"] for match in matches]
    if not 2 <= len(labels) <= MAX_PARTS or labels != list("abcdefgh"[: len(labels)]):
        return []
    ends = [match.start() for match in matches[1:]] + [len(text)]
    return [text[match.end() : end].strip(" \n*:,;") for match, end in zip(matches, ends, strict=True)]
