"""Code in a response: it says how an answer is computed, and states none."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qed.grading.extraction.words import list_words

FENCES = ("```", "~~~")
LANGUAGES = list_words(
    "python python3 py ipython pycon sage javascript js typescript ts java c c++ cpp c# csharp cs rust rs go golang "
    "julia r ruby rb php perl matlab octave bash sh shell zsh sql haskell scala kotlin swift lua lean lean4 coq"
)
# A line that only prints: print(12)
PRINTS = re.compile(
    r"\s{0,9}`?(?:print|println|printf|console\.log|System\.out\.print(?:ln)?)\s?\(.{0,400}\);?`?\s{0,9}"
)


def drop_code(lines: list[str]) -> Iterator[str]:
    """Yield the lines outside of code blocks, and the line of a block or text that has only one and is no code."""
    block: list[str] | None = None
    language = ""
    for line in lines:
        if line.lstrip().startswith(FENCES):
            if block is not None and len(block) == 1 and not _is_code(block[0], language):
                yield block[0]
            block, language = ([], read_language(line)) if block is None else (None, "")
        elif block is not None:
            block.append(line)
        elif len(lines) > 1 or not _is_code(line):
            yield line
    yield from (line for line in block or () if not _is_code(line))  # a block that never closes is no block


def _is_code(line: str, language: str = "") -> bool:
    """Return whether a line prints, or has letters and is of a programming language."""
    if language in LANGUAGES and any(sign.isalpha() for sign in line):
        return True
    return "(" in line and PRINTS.fullmatch(line) is not None


def read_language(fence: str) -> str:
    """Return the language that the opening line of a code block names, in small letters; else an empty text."""
    named = fence.strip().lstrip("`~").strip("{}. ").casefold().split()
    return named[0] if named else ""


def is_code_block(text: str) -> bool:
    """Return whether a text begins with a code block of a programming language."""
    line = text.lstrip().partition("\n")[0]
    return line.startswith(FENCES) and read_language(line) in LANGUAGES
