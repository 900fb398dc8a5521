"""Formats lists of names, options and aligned columns as plain text, with bold headings on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

MARGIN = 36  # rightmost column at which an option's help starts; longer options have it on the next line


def format_columns(rows: Iterable[Sequence[str]]) -> str:
    """Format rows of cells as aligned text; the last cell is not padded."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join(line.rstrip() for line in lines)


def read_width() -> int:
    """Return the width of a line in characters: the terminal's, but from 60 to 110."""
    return max(60, min(shutil.get_terminal_size().columns, 110))


def format_heading(text: str) -> str:
    """Format a heading: bold on a terminal with colours."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"\x1b[1m{text}\x1b[0m"


def wrap(text: str, margin: int = 2) -> str:
    """Wrap a text into lines after a margin."""
    return textwrap.fill(text, read_width(), initial_indent=" " * margin, subsequent_indent=" " * margin)


def format_listing(title: str, lines: dict[str, str]) -> str:
    """Format names with one line of help each, truncated to the width of the terminal."""
    margin = max(len(name) for name in lines) + 4
    rows = (
        f"  {name:{margin - 2}}{textwrap.shorten(line, read_width() - margin, placeholder=' …')}"
        for name, line in lines.items()
    )
    return "\n".join([format_heading(title), *rows])


def format_options(title: str, options: Sequence[tuple[str, str]]) -> str:
    """Format options with their help to the right, or on the next line if the option is long."""
    lines = [format_heading(title)] if options else []
    margin = max((len(option) + 4 for option, _ in options if len(option) + 4 <= MARGIN), default=MARGIN)
    for option, text in options:
        block = wrap(text, margin)
        fits = len(option) + 4 <= margin
        lines.append(f"  {option:{margin - 2}}{block[margin:]}" if fits else f"  {option}\n{block}")
    return "\n".join(lines)
