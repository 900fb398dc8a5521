"""The code blocks of README.md and docs/*.md, and whether each is run.

A block that cannot run here stands behind a comment that says why: `<!-- not run: needs a GPU -->`.
`python tests/docs/pages.py` counts them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?```(?P<language>bash|python|sh)[ \t]*\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
UNTESTED = re.compile(r"^```(?:shell|zsh|bash |sh |python )", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `reason` says why it is not run, and is empty for one that is."""

    page: str
    line: int
    language: str
    code: str
    reason: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of commands and of Python in a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        yield Block(page.name, line, match["language"], match["code"], match["reason"] or "")


def summary() -> str:
    """Return how many blocks of each page are run, and why the others are not."""
    lines = []
    for page in PAGES:
        found = list(blocks(page))
        lines.append(f"{page.name}: {sum(not block.reason for block in found)} of {len(found)} blocks are run")
        lines += [f"  line {block.line}: {block.reason}" for block in found if block.reason]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(summary() + "\n")
