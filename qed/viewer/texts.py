"""Split texts of a model into pieces that the page draws: plain text, formulas as trees, and collapsible thinking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qed.grading.extraction.marks import THOUGHTS, Tags
from qed.report.formulas import Formula, split_answer, split_formulas

MAX_TEXT = 200_000  # characters of a text that is shown
MAX_DRAWN = 40_000  # characters of a text in which formulas are drawn; a longer text is shown as plain text
MAX_THOUGHTS = 50  # of one text
Piece = dict[str, Any]


def cut_text(text: str) -> tuple[str, bool]:
    """Return a text of at most `MAX_TEXT` characters, and whether it was cut."""
    return text[:MAX_TEXT], len(text) > MAX_TEXT


def build_pieces(text: str, tags: Tags | None = None) -> list[Piece]:
    """Split a text into pieces, see the module.

    Args:
        text: a text of at most `MAX_TEXT` characters.
        tags: the thinking tags in the run's settings, besides the usual ones.
    """
    opening, closing = _choose_tags(text, tags)
    if not opening:
        return _split_text(text)
    pieces: list[Piece] = []
    for inside, thought, closed in _split_thoughts(text, opening, closing):
        if thought:
            pieces.append({"thought": _split_text(inside), "closed": closed})
        else:
            pieces += _split_text(inside)
    return pieces


def build_answer_pieces(text: str) -> list[Piece]:
    """Split a gold answer into pieces; it may be one formula without delimiters."""
    return [_describe(piece) for piece in split_answer(text[:MAX_TEXT])]


def read_tags(settings: Mapping[str, Any]) -> Tags | None:
    """Return the thinking tags in `data.prompt_options` of a run's settings; None if there are none."""
    for part in (settings, settings.get("rl"), settings.get("sft")):
        data = part.get("data") if isinstance(part, Mapping) else None
        options = data.get("prompt_options") if isinstance(data, Mapping) else None
        pairs = [str(option).partition("=") for option in options] if isinstance(options, list) else []
        named = {name.rpartition(".")[2]: value for name, _, value in pairs}
        if named.get("reasoning_start") and named.get("reasoning_end"):
            return named["reasoning_start"], named["reasoning_end"]
    return None


def _choose_tags(text: str, tags: Tags | None) -> Tags:
    """Return the first tags that a text contains; empty ones if it contains none."""
    for opening, closing in (tags, *THOUGHTS) if tags else THOUGHTS:
        if closing in text or opening in text:
            return opening, closing
    return "", ""


def _split_thoughts(text: str, opening: str, closing: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield the parts of a text as (text, is thinking, is closed), without the tags.

    A closing tag without an opening one ends thinking that the prompt opened.
    """
    first_end, first_begin = text.find(closing), text.find(opening)
    position = 0
    if first_end >= 0 and not 0 <= first_begin < first_end:
        yield text[:first_end], True, True
        position = first_end + len(closing)
    for _ in range(MAX_THOUGHTS):
        begin = text.find(opening, position)
        if begin < 0:
            break
        yield text[position:begin], False, True
        inside = begin + len(opening)
        end = text.find(closing, inside)
        if end < 0:
            yield text[inside:], True, False
            return
        yield text[inside:end], True, True
        position = end + len(closing)
    yield text[position:], False, True


def _split_text(text: str) -> list[Piece]:
    if len(text) > MAX_DRAWN:
        return [{"text": text}]
    return [_describe(piece) for piece in split_formulas(text)]


def _describe(piece: str | Formula) -> Piece:
    if isinstance(piece, str):
        return {"text": piece}
    return {"math": piece.tree, "source": piece.source, "block": piece.block}
