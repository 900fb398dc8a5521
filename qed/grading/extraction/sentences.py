"""Split a response into sentences: Markdown is removed, and a formula or a decimal number is never cut."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from qed.grading.extraction.spoken_formulas import write_formulas

MAX_TAIL_CHARS = 20_000
MAX_SENTENCE_CHARS = 1_000
FENCES = ("```", "~~~")
BOLD = re.compile(r"\*\*(?=[^\s*])([^*\n]{1,300})\*\*|(?<!\w)__(?=[^\s_])([^_\n]{1,300})__(?!\w)")
ITALIC = re.compile(r"(?<![\w*)\\])([*_])(?=[^\s*_])([^*_\n]{1,200})(?<=\S)\1(?![\w*(])")
PREFIX = re.compile(r"(?:>\s?|#{1,6}\s+|[-*+•●▪◦‣–]\s+(?=\S))+")
# Only a number that a word follows is the number of a line; `3) 4` may be an answer.
NUMBERING = re.compile(r"(?:step \d{1,2}[:.)]\s*|\d{1,2}[.)]\s+)(?=[^\d\W])", re.IGNORECASE)
STRUCK = re.compile(r"~~[^~\n]{1,300}~~")
RULE = re.compile(r"[-*_=\s]{3,200}")
END = re.compile(r"[.!?。！？؟।]")
ABBREVIATIONS = frozenset("e.g i.e eg ie approx vs etc mr mrs ms dr prof no fig eq cf resp ca st sec u.s".split())  # noqa: SIM905
# Words of a text that counts orders, where a number with an exclamation mark is a factorial.
COUNTING = re.compile(r"factorial|permut|arrang|ways|orders|anagrams", re.IGNORECASE)
TOTALS = re.compile(
    r"(?:grand |final )?(?:total|answer|result|sum|final|合计|总计|答案|итого|ответ|gesamt|summe|suma|somme)\b.{0,30}",
    re.IGNORECASE,
)
DISPLAYS = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("\\begin{", "\\end{"))
# A backslash before a dollar sign makes it a currency sign.
FORMULA = re.compile(r"(?<!\\)(?:\$\$|\$|\\\[|\\\()")
CLOSINGS = {"\\[": "\\]", "\\(": "\\)"}
OPENING = re.compile(r"\$\$|\\\[|\\\(|\\begin\{")


class Sentence(NamedTuple):
    """A sentence without Markdown, the texts in it that were bold, and whether it is a question."""

    text: str
    bold: tuple[str, ...] = ()
    asked: bool = False


def split_sentences(text: str) -> list[Sentence]:
    """Split the end of a text, where the answer is, into sentences."""
    text = join_displays(text[-MAX_TAIL_CHARS:])
    lines = [line.strip() for line in _drop_code(text.splitlines())]
    several = sum(map(bool, lines)) > 1
    sentences: list[Sentence] = []
    for line in _join_lines([_clean_line(line, several) for line in lines]):
        sentences += _split_line(line)
    return sentences


def join_displays(text: str) -> str:
    r"""Replace the line breaks within displayed formulas by spaces, and drop a `\[` that is never closed."""
    pieces, position, missing = [], 0, set[str]()
    while (opening := OPENING.search(text, position)) is not None:
        sign, closing = opening.group(), dict(DISPLAYS)[opening.group()]
        end = -1 if closing in missing else text.find(closing, opening.end())
        if end < 0:
            missing.add(closing)
        nested = sign in ("\\[", "\\(") and text.find(sign, opening.end(), end) >= 0
        if end < 0 or nested:
            pieces += [text[position : opening.start()], " " if sign in ("\\[", "\\(") else sign]
            position = opening.end()
            continue
        pieces.append(text[position : opening.start()])
        inside = text[opening.start() : end + len(closing)]
        pieces.append(" ".join(line.strip() for line in inside.splitlines()) if "\n" in inside else inside)
        position = end + len(closing)
    return "".join([*pieces, text[position:]])


def _drop_code(lines: list[str]) -> Iterator[str]:
    """Yield the lines outside of code blocks, and the content of a block that has only one line."""
    block: list[str] | None = None
    for line in lines:
        if line.lstrip().startswith(FENCES):
            if block is not None and len(block) == 1:
                yield block[0]
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
        else:
            yield line
    yield from block or ()  # a block that never closes is not code


def _clean_line(line: str, several: bool) -> str:
    """Remove the Markdown of a line; of a table, keep only a row of totals."""
    if line.startswith("|") and line.endswith("|") and line.count("|") > 2:
        return _read_row(line)
    if RULE.fullmatch(line) and line[0] in "-*_=":
        return ""
    if several and (prefix := PREFIX.match(line)) is not None:
        line = line[prefix.end() :]
    if several and (number := NUMBERING.match(line)) is not None:
        line = line[number.end() :]
    return _strip_emoji(line)


def _read_row(line: str) -> str:
    cells = [cell.strip(" *_") for cell in line.strip("| ").split("|")]
    return f"{cells[0].rstrip(':')}: {cells[-1]}" if len(cells) > 1 and TOTALS.fullmatch(cells[0]) else ""


def _strip_emoji(line: str) -> str:
    start, end = 0, len(line)
    while start < end and _is_ornament(line[start]):
        start += 1
    while end > start and _is_ornament(line[end - 1]):
        end -= 1
    return line[start:end]


def _is_ornament(sign: str) -> bool:
    return (
        sign.isspace() or sign in "\ufe0f\u200d\u200b\ufeff" or (sign > "\u2100" and unicodedata.category(sign) == "So")
    )


def _join_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines; join one that ends with a colon with the next, and the lines of a displayed formula."""
    pending = ""
    for line in filter(None, lines):
        if pending and (_is_open(pending) or (line.startswith(("$$", "\\[", "\\begin")) and _lacks_end(pending))):
            pending = f"{pending} {line}" if len(pending) < MAX_SENTENCE_CHARS else line
            continue
        if pending:
            yield pending
        pending = line
    if pending:
        yield pending


def _is_open(line: str) -> bool:
    line = line.rstrip("* _")
    return line.endswith((":", "：", "=", ",", "，")) or line.casefold().endswith((" is", " are"))


def _lacks_end(line: str) -> bool:
    return not line.rstrip("* _").endswith((".", "!", "?", "。", "$$", "\\]", "}"))


def _split_line(line: str) -> Iterator[Sentence]:
    start, spans = 0, deque(_find_formulas(line))
    counts = "!" in line and COUNTING.search(line) is not None
    for end in END.finditer(line):
        while spans and spans[0][1] <= end.start():
            spans.popleft()
        inside = bool(spans) and spans[0][0] < end.start()
        if end.start() >= start and not inside and _ends_sentence(line, start, end):
            factorial = counts and end.group() == "!" and line[end.start() - 1].isdigit()
            yield _build_sentence(line[start : end.start() + factorial], end.group() in "?？؟")
            start = end.end()
    if line[start:].strip(" *_)]"):
        yield _build_sentence(line[start:], False)


def _find_formulas(line: str) -> list[tuple[int, int]]:
    """Return where delimited formulas begin and end; an amount of money is not a formula."""
    spans, position = [], 0
    while (opening := FORMULA.search(line, position)) is not None:
        sign = opening.group()
        end = line.find(CLOSINGS.get(sign, sign), opening.end())
        if end < 0 or (sign == "$" and is_money(line, opening.start(), end)):
            position = opening.end()
            continue
        position = end + len(sign)
        spans.append((opening.start(), position))
    return spans


def is_money(line: str, start: int, end: int) -> bool:
    """Return whether the text between two dollar signs is prose, so that they are amounts of money."""
    inside, after = line[start + 1 : end], line[end + 1 : end + 2]
    if not inside.removeprefix(".")[:1].isdigit():
        return False
    words = [word for word in inside.split() if len(word) > 2 and word.strip(",.;:").isalpha()]
    return after.isdigit() or bool(words)


def _ends_sentence(line: str, start: int, end: re.Match[str]) -> bool:
    sign, after = end.group(), line[end.end() : end.end() + 3].lstrip("*_\"')”’")
    if sign in "。！？؟।":
        return True
    rest = line[end.end() :].lstrip(" *_)\"'") if sign == "!" else ""
    if sign == "!" and rest[:1] and not rest[:1].isalpha():
        return False  # 5! = 120
    if after and not after[:1].isspace() and after[:1] not in ")]":
        return False
    if sign != "." or not after.strip():
        return True
    before = line[start : end.start()].lstrip(" *_(")
    word = before.rpartition(" ")[2].strip("(*").casefold()
    if word in ABBREVIATIONS or (word in {"a.m", "p.m"} and not after.strip()[:1].isupper()):
        return False
    # B. Paris
    return not (len(before) == 1 and before.isalpha() and start == 0) and not re.search(r"[:：]\s?\(?[A-J]$", before)


def _build_sentence(text: str, asked: bool) -> Sentence:
    text = text[-MAX_SENTENCE_CHARS:]
    bold = tuple((one or two).strip() for one, two in BOLD.findall(text)) if "**" in text or "__" in text else ()
    return Sentence(strip_emphasis(text), bold, asked)


def strip_emphasis(text: str) -> str:
    """Remove the markers of bold, italic and code text, and struck-through text."""
    if "~~" in text:
        text = STRUCK.sub("", text)
    if "**" in text or "__" in text:
        text = BOLD.sub(lambda match: match[1] or match[2], text)
    if "*" in text or "_" in text:
        text = ITALIC.sub(r"\2", text) if "$" not in text and "\\" not in text else text
    if text.count("**") == 1 or text.startswith("**") or text.rstrip().endswith("**"):
        text = text.strip().removeprefix("**").removesuffix("**") if not re.search(r"\w\*\*\w", text) else text
    return write_formulas(text.replace("`", "").strip())
