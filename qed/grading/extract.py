"""Extract the final answer of a text. Every search is linear in the length of the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from qed.grading.extraction.boxes import cut_instruction, find_box, find_last_boxed, has_unfinished_box
from qed.grading.extraction.conclusion import find_conclusion
from qed.grading.extraction.marks import (
    ANSWER_TAGS,
    TAGS,
    TURNS,
    Tags,
    cut_at_turn,
    cut_open_thought,
    cut_to_last_turn,
    find_between,
    find_field,
    find_hashes,
    find_last_element,
    find_last_opened,
    find_tag,
    may_have_thought,
)
from qed.grading.extraction.outcome import CUT_OFF, NOT_FOUND, Extracted, Refusal
from qed.grading.extraction.patterns import find_by_pattern, is_pattern
from qed.grading.extraction.sentences import MAX_SENTENCE_CHARS

__all__ = [
    "ANSWER_TAGS",
    "MODES",
    "NUMBER",
    "TAGS",
    "TURNS",
    "Extracted",
    "Refusal",
    "Tags",
    "extract_final_answer",
    "find_between",
    "find_final_answer",
    "find_last_boxed",
    "read_tag",
]

# A number in the sense of GSM8K's graders, for examples/cs336_adapters.py.
NUMBER = re.compile(
    r"(?<![\w.])[-−]?[$€£]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[/:]\d+(?!\.?\d))?(?:\s?\\?%)?",
    re.ASCII,
)
MODES = ("strict", "flexible", "lenient")
Finder = Callable[[str], str | None]
CACHED_TEXTS = 16  # an answer is read in several modes and again for its outcome class, in quick succession


def extract_final_answer(text: str, mode: str = "flexible", tags: tuple[Tags, ...] = ANSWER_TAGS) -> Extracted | None:
    """Extract the final answer of a response, and where it was found; None if no answer is certain.

    The mode `strict` accepts a complete box, an answer tag or a `####` line; `flexible` also accepts an answer in
    words; `lenient` also accepts a box or tag that is never closed. `regex:PATTERN` takes the first group of the last
    match of a regular expression, `first-regex:PATTERN` that of the first match. `tags` are the pairs that may enclose
    an answer, such as <answer> and </answer>.

    Raises:
        ValueError: there is no such mode.
    """
    found = find_final_answer(text, mode, tags)
    return found if isinstance(found, Extracted) else None


def find_final_answer(text: str, mode: str = "flexible", tags: tuple[Tags, ...] = ANSWER_TAGS) -> Extracted | Refusal:
    """Extract the final answer of a response as `extract_final_answer` does, or say why there is none.

    Raises:
        ValueError: there is no such mode.
    """
    if is_pattern(mode):
        return find_by_pattern(text, mode)
    if mode not in MODES:
        raise ValueError(f"there is no extraction mode {mode!r}; use one of: {', '.join(MODES)}")
    turn, marked, is_cut = _find_in_last_turn(text, tags)
    if mode == "strict":
        return marked or Refusal(CUT_OFF if is_cut else NOT_FOUND)
    found = marked or _find_unmarked(text, tags)
    return (_find_open(turn, tags) or found) if mode == "lenient" and isinstance(found, Refusal) else found


@lru_cache(CACHED_TEXTS)
def _find_in_last_turn(text: str, tags: tuple[Tags, ...]) -> tuple[str, Extracted | None, bool]:
    """Return the text of the last turn, the marked answer outside of an unclosed thinking block, and whether the text
    has such a block.
    """
    if may_have_thought(text):
        turn = cut_to_last_turn(text)
        said = cut_open_thought(turn)
    else:
        turn = said = cut_at_turn(text)
    return turn, _find_marked(said, tags), said != turn


@lru_cache(CACHED_TEXTS)
def _find_unmarked(text: str, tags: tuple[Tags, ...]) -> Extracted | Refusal:
    """Find an answer that is marked in an unclosed thinking block, or stated in words."""
    turn, _, is_cut = _find_in_last_turn(text, tags)
    marked = _find_marked(turn, tags) if is_cut else None
    if marked is not None:
        return marked
    opening, closing = find_last_opened(turn, tags)
    rest = cut_instruction(turn)
    if is_cut or has_unfinished_box(rest) or turn.rfind(opening) > turn.rfind(closing):
        return Refusal(CUT_OFF)
    element = find_last_element(turn) or find_field(turn)
    return Extracted(_read_tagged(element), "tag") if element else find_conclusion(rest)


def _find_marked(text: str, tags: tuple[Tags, ...]) -> Extracted | None:
    """Return the answer in a tag, in a box or after ####."""
    tagged = (find_tag(text, tags) or "").strip()
    if tagged:
        return Extracted(_read_tagged(tagged), "tag")
    finders: tuple[tuple[str, Finder], ...] = (("box", find_box), ("hashes", find_hashes))
    for source, find in finders:
        answer = (find(text) or "").strip()
        if answer:
            return Extracted(answer, source)
    return None


def read_tag(content: str) -> str:
    """Return the answer in the content of a tag: the content of its box, or the value that its sentence states."""
    content = content.strip()
    return _read_tagged((find_box(content) or content).strip())


def _read_tagged(content: str) -> str:
    """Return the answer that a sentence in a tag states; return other content unchanged."""
    if len(content.split()) < 3 or ("\\" in content and " " not in content.replace("\\ ", "")):
        return content
    found = find_conclusion(content)
    return found.answer if isinstance(found, Extracted) else content


def _find_open(text: str, tags: tuple[Tags, ...]) -> Extracted | None:
    """Return the content of a box or a tag that is never closed."""
    _, box, rest = text.rpartition("\\boxed{")
    answer = rest.partition("$")[0].partition("\n")[0][:MAX_SENTENCE_CHARS].strip() if box else ""
    if answer:
        return Extracted(answer, "open box")
    opening, _ = find_last_opened(text, tags)
    answer = text.rpartition(opening)[2][:MAX_SENTENCE_CHARS].strip() if opening in text else ""
    return Extracted(answer, "open tag") if answer else None
