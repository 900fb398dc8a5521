"""Render formulas in a text as MathML, which browsers draw without a script; what does not parse stays text.

The converter's output is not trusted: it is rebuilt from an allowlist of presentation elements and attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from latex2mathml.converter import convert

from qed.report.markup import Html, build_element, join_html

# A dollar sign followed by a space, or a closing one before a digit, is taken as money.
FORMULA = re.compile(
    r"\$\$([^$]{1,400})\$\$|\$(?=\S)([^$\n]{1,400})(?<=\S)\$(?!\d)|\\\[(.{1,400}?)\\\]|\\\((.{1,400}?)\\\)", re.DOTALL
)
BOX = "\\boxed{"
MAX_BOX_CHARS = 400
MAX_FORMULAS = 60  # in one text; later ones stay text
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
# A formula can set lengths, and a very wide space would push everything else off the page.
LENGTH = re.compile(r"([+-]?\d{0,3}\.?\d{0,4})(em|ex|px|pt)")
MAX_LENGTHS = {"em": 3.0, "ex": 6.0, "px": 50.0, "pt": 36.0}
MIN_LENGTH = -0.2  # in any unit: a larger negative space would move text over other text and disguise it
DEFINES = ("\\def", "\\newcommand", "\\renewcommand")  # nested definitions can double the text with every line
WORD = re.compile(r"[a-z0-9 -]{1,40}")


def render_formulas(content: str) -> Html:
    """Render a text with its formulas drawn."""
    return join_html(*_split_pieces(content))


def convert_formula(content: str) -> Html:
    """Render an answer that may be one formula without delimiters, as gold answers often are."""
    bare = "\\" in content and "$" not in content and len(content) <= MAX_BOX_CHARS
    markup = _draw_formula(content, block=False) if bare else None
    return render_formulas(content) if markup is None else markup


def _split_pieces(content: str) -> Iterator[str | Html]:
    position, count = 0, 0
    for begin, end, formula, block in _find_formulas(content):
        if begin < position or count >= MAX_FORMULAS:
            continue
        markup = _draw_formula(formula, block)
        if markup is not None:
            yield content[position:begin]
            yield markup
            # A block formula ends its own line, so the line break after it is dropped.
            position, count = end + (block and content[end : end + 1] == "\n"), count + 1
    yield content[position:]


def _find_formulas(content: str) -> Iterator[tuple[int, int, str, bool]]:
    """Yield (begin, end, source, is block) of each formula, sorted by position."""
    delimited = [
        (match.start(), match.end(), next(filter(None, match.groups()), ""), match[0].startswith(("$$", "\\[")))
        for match in FORMULA.finditer(content)
    ]
    yield from sorted([*delimited, *_find_boxes(content, delimited)])


def _find_boxes(content: str, delimited: list[tuple[int, int, str, bool]]) -> Iterator[tuple[int, int, str, bool]]:
    """Find boxes outside the delimited formulas."""
    begin = content.find(BOX)
    while begin >= 0:
        depth, end = 1, begin + len(BOX)
        while end < min(len(content), begin + MAX_BOX_CHARS) and depth:
            depth += {"{": 1, "}": -1}.get(content[end], 0)
            end += 1
        if not depth and not any(first <= begin < last for first, last, _, _ in delimited):
            yield begin, end, content[begin:end], False
        begin = content.find(BOX, end)


def _draw_formula(formula: str, block: bool) -> Html | None:
    if not formula.count("}") == formula.count("{") <= MAX_BRACES or any(word in formula for word in DEFINES):
        return None
    try:
        tree = ElementTree.fromstring(convert(formula, display="block" if block else "inline"))
        return build_element("span", _rebuild_element(tree, formula), class_="formula block" if block else "formula")
    except Exception:  # noqa: BLE001 -- the converter raises many kinds of errors on model output
        return None


def _rebuild_element(node: ElementTree.Element, source: str | None = None) -> Html:
    name = node.tag.removeprefix(NAMESPACE)
    # Text with a backslash is a command that the converter does not know, so its output is not the formula.
    if name not in ALLOWED_ELEMENTS or (node.tail or "").strip() or "\\" in (node.text or ""):
        raise ValueError(name)
    attributes = {key: value for key, value in node.attrib.items() if key in ALLOWED_ATTRIBUTES and _is_harmless(value)}
    children = (_rebuild_element(child) for child in node)
    return build_element(name, node.text, *children, alttext=source, **attributes)


def _is_harmless(value: str) -> bool:
    """Return whether the value of an attribute is a plain word or a length within the limits."""
    length = LENGTH.fullmatch(value)
    if length is None:
        return WORD.fullmatch(value) is not None
    return length[1].strip("+-.") != "" and MIN_LENGTH <= float(length[1]) <= MAX_LENGTHS[length[2]]
