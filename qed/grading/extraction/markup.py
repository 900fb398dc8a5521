"""Markup tags in a text: removed, so that none is read as a part of an answer.

`<` and `>` compare too, so a tag is only what cannot be a comparison: a name that opens and closes, or `<br>`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

ATTRIBUTE = r"\s{1,3}[A-Za-z][\w:-]{0,30}+=(?:\"[^\"<>]{0,200}+\"|'[^'<>]{0,200}+'|[\w#.%-]{1,100}+)"
TAG = re.compile(rf"<(?P<closes>/?)(?P<name>[A-Za-z][\w-]{{0,30}}+)(?:{ATTRIBUTE}){{0,5}}+\s?>")
LINE_BREAK = re.compile(r"<br\s?/?>", re.IGNORECASE)
RAISED = frozenset({"sup", "sub"})  # x<sup>2</sup> is neither x2 nor x 2, so these tags stay
# The text between these is struck through, a thought, or the task: no answer of the response.
UNSAID = re.compile(
    r"del|s|strike|not|wrong|incorrect|mistake|guess|draft|example|question|problem|input|hint|tool|tool_\w+|"
    r"think|thinking|thoughts?|reasoning|(?:start_)?working_out|scratchpad|analysis|reflection",
    re.IGNORECASE,
)
# Values on both sides of a tag are two: <li>5</li><li>-7</li> is not 5-7, and 3<b>200</b> is not 3200.
ENDS_VALUE = re.compile(r"(?:[\d)\]}%½-¾⅐-⅞²³¹π∞]|[\w)\]}]\$)\s{0,9}\Z")
BEGINS_NUMBER = re.compile(r"\s{0,9}\.?\d")
# Only where an element begins: <b>5</b> - 7 and <b>3</b>√2 are one value.
BEGINS_VALUE = re.compile(r"\s{0,9}[-−–+±]?\s{0,3}(?:\.?\d|[(\[{√π½-¾⅐-⅞]|\\[A-Za-z]|\$[\w\\(-])")
BESIDE = 16  # characters that are looked at beside a tag
APART = " • "  # no formula, list or sentence goes on across this sign
Span = tuple[int, int]


def remove_markup(text: str) -> str:
    """Return a text without its tags, and without what is between tags that say that it is no answer.

    A text with nothing else stays as it is. What tags separate stays apart.
    """
    parts, position = [], 0
    for start, end in _join_adjacent(sorted(_find_removed(text)), text) if "<" in text else ():
        parts += [text[position:start], _choose_separator(text, start, end)]
        position = end
    plain = "".join([*parts, text[position:]])
    return plain if plain.strip(APART) else text


def _find_removed(text: str) -> Iterator[Span]:
    """Yield the places of the tags that open and close, or of all between them if it is no answer."""
    if "<br" in text or "<BR" in text:
        yield from (match.span() for match in LINE_BREAK.finditer(text))
    opened: dict[str, list[re.Match[str]]] = defaultdict(list)
    for tag in TAG.finditer(text) if "</" in text else ():
        name = tag["name"]
        if not tag["closes"]:
            opened[name].append(tag)
        elif opened[name]:
            opening = opened[name].pop()
            if UNSAID.fullmatch(name):
                yield opening.start(), tag.end()
            elif name.lower() not in RAISED:
                yield from (opening.span(), tag.span())


def _join_adjacent(spans: list[Span], text: str) -> list[Span]:
    """Join the spans that overlap, touch or have only spaces between them."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and not text[joined[-1][1] : start].strip(" "):
            start, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((start, end))
    return joined


def _choose_separator(text: str, start: int, end: int) -> str:
    """Return what stands for tags: a sign between two values, a space between words, else nothing."""
    before, after = text[max(0, start - BESIDE) : start], text[end : end + BESIDE]
    kinds = {tag["closes"] for tag in TAG.finditer(text, start, end)}
    opens = text[text.rfind("<", start, end) + 1] != "/"
    begins = BEGINS_VALUE if opens else BEGINS_NUMBER
    if ENDS_VALUE.search(before) and begins.match(after):
        return APART
    if before[-1:].isspace() or after[:1].isspace():
        return ""
    return " " if len(kinds) > 1 or (before[-1:].isalnum() and after[:1].isalnum()) else ""
