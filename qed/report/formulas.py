"""Render formulas in a text as MathML, which browsers draw without a script; what does not parse is shown as text.

The converter's output is not trusted, but rebuilt from an allowlist of presentation elements and attributes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert

from qed.report.markup import Html, build_element, join_html

# A dollar sign followed by a space, or a closing one before a digit, is treated as currency.
FORMULA = re.compile(
    r"\$\$([^$]{1,400})\$\$|\$(?=\S)([^$\n]{1,400})(?<=\S)\$(?!\d)|\\\[(.{1,400}?)\\\]|\\\((.{1,400}?)\\\)", re.DOTALL
)
BOX = "\\boxed{"
MAX_BOX_CHARS = 400
MAX_FORMULAS = 60  # per text; later ones are shown as text
MAX_FAILURES = 200  # candidates per text that turn out not to be formulas; each costs time
MAX_BRACES = 30
NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"
ELEMENTS = (
    "math mrow mi mn mo mtext mspace mfrac msqrt mroot msup msub msubsup munder mover munderover mtable mtr mtd mstyle "
    "menclose mpadded mfenced"
)
ATTRIBUTES = (
    "mathvariant stretchy fence separator linethickness notation columnalign accent accentunder form display "
    "displaystyle scriptlevel minsize maxsize width"
)
ALLOWED_ELEMENTS, ALLOWED_ATTRIBUTES = frozenset(ELEMENTS.split()), frozenset(ATTRIBUTES.split())
# A formula can set lengths; a very wide space would push everything else off the page.
LENGTH = re.compile(r"([+-]?\d{0,3}\.?\d{0,4})(em|ex|px|pt)")
MAX_LENGTHS = {"em": 3.0, "ex": 6.0, "px": 50.0, "pt": 36.0}
MIN_LENGTH = -0.2  # in any unit: more negative space could move text over other text and disguise it
DEFINES = ("\\def", "\\newcommand", "\\renewcommand")  # nested definitions can double the text with every line
WORD = re.compile(r"[a-z0-9 -]{1,40}")
# An element, serializable as JSON: its name, its attributes, and its children, which are texts or elements.
Tree = tuple[str, dict[str, str], list[Any]]


@dataclass(frozen=True)
class Formula:
    """A formula in a text: its MathML tree, its source with delimiters, and whether it is a block formula."""

    tree: Tree
    source: str
    block: bool


def render_formulas(content: str) -> Html:
    """Render a text with its formulas drawn."""
    return join_html(*(piece if isinstance(piece, str) else _render(piece) for piece in split_formulas(content)))


def convert_formula(content: str) -> Html:
    """Render an answer that may be one formula without delimiters, as gold answers often are."""
    return join_html(*(piece if isinstance(piece, str) else _render(piece) for piece in split_answer(content)))


def split_answer(content: str) -> list[str | Formula]:
    """Split an answer into texts and formulas; the whole may be one formula without delimiters."""
    bare = "\\" in content and "$" not in content and len(content) <= MAX_BOX_CHARS
    tree = _build_tree(content, block=False) if bare else None
    return split_formulas(content) if tree is None else [Formula(tree, content, block=False)]


def split_formulas(content: str) -> list[str | Formula]:
    """Split a text into plain texts and formulas, in order; what does not parse remains text."""
    pieces: list[str | Formula] = []
    position, count, failures = 0, 0, 0
    for begin, end, formula, block in _find_formulas(content):
        if begin < position:
            continue
        if count >= MAX_FORMULAS or failures >= MAX_FAILURES:
            break
        tree = _build_tree(formula, block)
        if tree is None:
            failures += 1
        else:
            pieces += [content[position:begin], Formula(tree, content[begin:end], block)]
            # A block formula ends its own line, so the newline after it is dropped.
            position, count = end + (block and content[end : end + 1] == "\n"), count + 1
    return [piece for piece in [*pieces, content[position:]] if piece]


def _find_formulas(content: str) -> Iterator[tuple[int, int, str, bool]]:
    """Yield (begin, end, source, is block) of each formula, sorted by position."""
    delimited = [
        (match.start(), match.end(), next(filter(None, match.groups()), ""), match[0].startswith(("$$", "\\[")))
        for match in FORMULA.finditer(content)
    ]
    yield from sorted([*delimited, *_find_boxes(content, delimited)])


def _find_boxes(content: str, delimited: list[tuple[int, int, str, bool]]) -> Iterator[tuple[int, int, str, bool]]:
    """Find boxes outside the delimited formulas."""
    starts = [first for first, _, _, _ in delimited]
    begin = content.find(BOX)
    while begin >= 0:
        depth, end = 1, begin + len(BOX)
        while end < min(len(content), begin + MAX_BOX_CHARS) and depth:
            depth += {"{": 1, "}": -1}.get(content[end], 0)
            end += 1
        before = bisect_right(starts, begin) - 1
        if not depth and not (before >= 0 and begin < delimited[before][1]):
            yield begin, end, content[begin:end], False
        begin = content.find(BOX, end)


def _build_tree(formula: str, block: bool) -> Tree | None:
    if not formula.count("}") == formula.count("{") <= MAX_BRACES or any(word in formula for word in DEFINES):
        return None
    try:
        tree = ElementTree.fromstring(convert(formula, display="block" if block else "inline"))
        name, attributes, children = _rebuild_element(tree)
    except Exception:  # noqa: BLE001 -- the converter raises many kinds of errors on model output
        return None
    return name, {"alttext": formula, **attributes}, children


def _rebuild_element(node: ElementTree.Element) -> Tree:
    name = node.tag.removeprefix(NAMESPACE)
    # A backslash in text means a command unknown to the converter, so its output is not the formula.
    if name not in ALLOWED_ELEMENTS or (node.tail or "").strip() or "\\" in (node.text or ""):
        raise ValueError(name)
    attributes = {key: value for key, value in node.attrib.items() if key in ALLOWED_ATTRIBUTES and _is_harmless(value)}
    texts: list[Any] = [node.text] if node.text else []
    return name, attributes, [*texts, *map(_rebuild_element, node)]


def _render(formula: Formula) -> Html:
    kind = "formula block" if formula.block else "formula"
    return build_element("span", _render_tree(formula.tree), class_=kind)


def _render_tree(tree: Tree) -> Html:
    name, attributes, children = tree
    inner = (child if isinstance(child, str) else _render_tree(child) for child in children)
    return build_element(name, *inner, **attributes)


def _is_harmless(value: str) -> bool:
    """Return whether the value of an attribute is a plain word or a length within the limits."""
    length = LENGTH.fullmatch(value)
    if length is None:
        return WORD.fullmatch(value) is not None
    return length[1].strip("+-.") != "" and MIN_LENGTH <= float(length[1]) <= MAX_LENGTHS[length[2]]
