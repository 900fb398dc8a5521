r"""Boxes: the last complete `\boxed{…}`, and a final answer in several boxes.

Every search is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

# An escaped brace does not count. Each alternative begins differently, so the search never backtracks.
BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{|\\.|[{}]", re.DOTALL)
BOXES = ("\\boxed", "\\fbox")
# Most texts have one box, with no brace or command in it and no unescaped brace after it.
ONLY_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{([^{}\\]*)\}(?:[^{}\\]+|\\.)*+\Z", re.DOTALL)
# Without braces LaTeX boxes only a single character, but the writer means the whole number.
BARE_BOX = re.compile(r"\\boxed\s?(-?\d[\d.,]{0,40}|[A-Z]\b)")
# The instruction `put your final answer within \boxed{}`, which a response may repeat.
INSTRUCTION = re.compile(
    r"\b(?:within|in|inside|into|using)(?: an?| the)?[ `$\"'(*]{1,4}\\boxed\s?\{\s{0,3}\}[`$\"')*]{0,4}[.!:\n]"
)
# What may stand between two boxes of one final answer: a joining word or sign, and the name of the next value.
JOINED = re.compile(
    r"[\s$]{0,9}(?:\\[)\]])?[\s$]{0,9}"
    r"(?P<joiner>(?:[,;]|\\q?quad|\\ |\s){0,6}(?:\\(?:text|mathrm|textrm)\s?\{\s?(?:and|or|und|et|y|или|и)\s?\}"
    r"|\band\b|\bor\b|\bund\b|\bet\b|\by\b|\bи\b|\bили\b|和|或|以及|[,;、])(?:[,;]|\\q?quad|\\ |\s){0,6})"
    r"[\s$]{0,9}(?:\\[(\[])?[\s$]{0,9}"
    r"(?:(?:(?:and )?the )?(?:first|second|third|fourth|last|other|next|smaller|larger|smallest|largest)"
    r"(?: \w{1,12})? (?:is|=|equals) [$]{0,2}(?:\\[(\[])?\s?)?"
    r"(?:(?P<name>[A-Za-z](?:_\{?\w{1,3}\}?)?)\s?(?:=|\\in)\s?)?"
)
NAME = re.compile(r"(?<![A-Za-z\\])(?P<name>[A-Za-z](?:_\{?\w{1,3}\}?)?)\s?=\s?$")
# The label of a part: (a), a), part b, (ii), Teil c). The group that matched is its letter or numeral.
PART = re.compile(
    r"(?:(?<![\w\\{(])\(|(?:^|(?<=\n))[*#\s]{0,6}(?:\(|(?=[a-h]\)|[ivx]{1,4}\)))|"
    r"\b(?:[Pp]arte?|[Pp]artie|[Tt]eil|[Qq]uestion|[Cc]ase)[ ~]\(?)"
    r"(?:(?P<letter>[a-h])|(?P<roman>i{1,3}|iv|v)|(?P<digit>[1-8])|(?P<capital>[A-H]))(?:\)|(?=[\s:.*,]))",
)
ROMAN = ("i", "ii", "iii", "iv", "v")
MAX_BOXES = 20
MAX_GAP_CHARS = 80


def find_boxes(text: str, names: tuple[str, ...] = BOXES) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the content of every complete box, in the order of their ends."""
    starts: list[int] = []  # the start of the content of each open brace, or -1 for a brace that opens no box
    # Braces before the first box cannot close one.
    for match in BRACES.finditer(text, _find_first(text, names)):
        brace = match.group()
        if brace == "}":
            start = starts.pop() if starts else -1
            if start >= 0:
                yield start, match.start()
        elif brace[-1] == "{" and len(brace) != 2:
            starts.append(match.end() if brace[:-1].strip() in names else -1)


def _find_first(text: str, names: tuple[str, ...]) -> int:
    """Return where the first of the names begins, or the length of the text."""
    before = max(0, text.find("box") - 2)  # the first name begins here or later, so one search serves both names
    found = [start for name in names if (start := text.find(name, before)) >= 0]
    return min(found, default=len(text))


def find_last_boxed(text: str) -> str | None:
    r"""Return the content of the complete `\boxed{…}` that opens last, with matched braces; None if there is none."""
    begin, end = max(find_boxes(text, ("\\boxed",)), default=(-1, -1))
    return text[begin:end].strip() if begin >= 0 else None


def find_box(text: str) -> str | None:
    """Return the answer in boxes: the last one that is not empty, or the values of several that form one answer."""
    if text.rfind("box") < 0:  # from the end, where the answer is
        return None
    only = ONLY_BOX.match(text, _find_first(text, BOXES))
    if only is not None and only[1].strip():
        return only[1]
    filled = [(begin, end) for begin, end in find_boxes(text) if text[begin:end].strip()]
    if filled:
        return join_boxes(text, filled) or text[slice(*max(filled))]
    bare = find_last(BARE_BOX, text)
    return bare.group(1).rstrip(".,") if bare is not None else None


def find_last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of a pattern; None if there is none."""
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def has_unfinished_box(text: str) -> bool:
    """Return whether a text without a complete box opens one, because it was cut off."""
    return any(f"{name}{{" in text for name in BOXES)


def cut_instruction(text: str) -> str:
    r"""Return the text after the last instruction to put an answer in `\boxed{}`; all of it if nothing follows the
    instruction or a box before it is open.
    """
    *before, rest = INSTRUCTION.split(text) if "\\boxed" in text else [text]
    return text if not rest.strip() or any(map(has_unfinished_box, before)) else rest


def join_boxes(text: str, boxes: Sequence[tuple[int, int]]) -> str | None:
    """Return the values of several boxes as one list if they form one final answer, else None.

    They do if each box belongs to a different labelled part, (a), (b), or if only a comma, a semicolon or a word such
    as `and` stands between them. Boxes of the steps of a derivation are not joined.
    """
    if not 2 <= len(boxes) <= MAX_BOXES or any(one[1] > two[0] for one, two in pairwise(boxes)):
        return None
    return _join_adjacent(text, boxes) or _join_parts(text, boxes)


def _join_adjacent(text: str, boxes: Sequence[tuple[int, int]]) -> str | None:
    """Join the boxes at the end of the text that are separated only by joining words or signs."""
    values = [text[slice(*boxes[-1])].strip()]
    joiner, index, named = ", ", len(boxes) - 1, False
    while index:
        gap = text[boxes[index - 1][1] + 1 : _find_opening(text, boxes[index][0])]
        match = JOINED.fullmatch(gap) if len(gap) <= MAX_GAP_CHARS else None
        if match is None:
            break
        if match["name"]:
            values[0], named = f"{match['name']} = {values[0]}", True
        joiner = " or " if any(word in match["joiner"] for word in ("or", "или", "或")) else joiner
        index -= 1
        values.insert(0, text[slice(*boxes[index])].strip())
    if len(set(values)) < 2:
        return None
    opening = _find_opening(text, boxes[index][0])
    name = NAME.search(text[max(0, opening - 12) : opening].replace("$", "").rstrip()) if named else None
    if name is not None:
        values[0] = f"{name['name']} = {values[0]}"
    return joiner.join(values)


def _find_opening(text: str, content: int) -> int:
    r"""Return where the `\boxed` of a content begins."""
    return text.rfind("\\", 0, content)


def _join_parts(text: str, boxes: Sequence[tuple[int, int]]) -> str | None:
    """Join the boxes of labelled parts: each part has one box, and the labels count up from the first."""
    values, position = [], 0
    for number, (begin, end) in enumerate(boxes):
        opening = _find_opening(text, begin)
        if not any(_number_label(match) == number for match in PART.finditer(text[position:opening])):
            return None
        values.append(text[begin:end].strip())
        position = end + 1
    return ", ".join(values)


def _number_label(match: re.Match[str]) -> int:
    if match["letter"]:
        return ord(match["letter"]) - ord("a")
    if match["capital"]:
        return ord(match["capital"]) - ord("A")
    return ROMAN.index(match["roman"]) if match["roman"] else int(match["digit"]) - 1
