"""Formulas in a text as MathML, which browsers draw without a script; whatever does not parse stays text.

What the converter makes is not trusted: it is rebuilt from the elements and attributes that only draw.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from latex2mathml.converter import convert

from qed.report.markup import Html, build_element, join_html

# A sign for money has a space on its inner side, or a number behind it.
FORMULA = re.compile(
    r"\$\$([^$]{1,400})\$\$|\$(?=\S)([^$\n]{1,400})(?<=\S)\$(?!\d)|\\\[(.{1,400}?)\\\]|\\\((.{1,400}?)\\\)", re.DOTALL
)
BOX = "\\boxed{"
LONGEST_BOX = 400
MOST = 60  # formulas of one text; those behind stay text
DEEPEST = 30  # open braces
SPACE = "{http://www.w3.org/1998/Math/MathML}"
ELEMENTS = (
    "math mrow mi mn mo mtext mspace mfrac msqrt mroot msup msub msubsup munder mover munderover mtable mtr mtd mstyle "
    "menclose mpadded mfenced"
)
ATTRIBUTES = (
    "mathvariant stretchy fence separator linethickness notation columnalign accent accentunder form display "
    "displaystyle scriptlevel minsize maxsize width"
)
DRAWN, KEPT = frozenset(ELEMENTS.split()), frozenset(ATTRIBUTES.split())
# Some lengths are the author's own, and a space as wide as a street would push everything else off the page.
LENGTH = re.compile(r"([+-]?\d{0,3}\.?\d{0,4})(em|ex|px|pt)")
WIDEST = {"em": 3.0, "ex": 6.0, "px": 50.0, "pt": 36.0}
NARROWEST = -0.2  # of any unit: text pushed back over other text would read as what it is not
DEFINES = ("\\def", "\\newcommand", "\\renewcommand")  # what is defined may double with every line
WORD = re.compile(r"[a-z0-9 -]{1,40}")


def render_formulas(content: str) -> Html:
    """A text with its formulas drawn."""
    return join_html(*_split_pieces(content))


def convert_formula(content: str) -> Html:
    """An answer that is all one formula, as golds are often written, drawn; any other as `with_formulas` draws it."""
    bare = "\\" in content and "$" not in content and len(content) <= LONGEST_BOX
    markup = _draw_formula(content, block=False) if bare else None
    return render_formulas(content) if markup is None else markup


def _split_pieces(content: str) -> Iterator[str | Html]:
    place, drawn = 0, 0
    for begin, end, formula, block in _find_formulas(content):
        if begin < place or drawn >= MOST:
            continue
        markup = _draw_formula(formula, block)
        if markup is not None:
            yield content[place:begin]
            yield markup
            # A block ends its line by itself.
            place, drawn = end + (block and content[end : end + 1] == "\n"), drawn + 1
    yield content[place:]


def _find_formulas(content: str) -> Iterator[tuple[int, int, str, bool]]:
    """Where formulas begin and end, what they say, and whether they stand in a line of their own."""
    marked = [
        (match.start(), match.end(), next(filter(None, match.groups()), ""), match[0].startswith(("$$", "\\[")))
        for match in FORMULA.finditer(content)
    ]
    yield from sorted([*marked, *_find_boxes(content, marked)])


def _find_boxes(content: str, marked: list[tuple[int, int, str, bool]]) -> Iterator[tuple[int, int, str, bool]]:
    """Boxes that stand in the text itself."""
    begin = content.find(BOX)
    while begin >= 0:
        depth, end = 1, begin + len(BOX)
        while end < min(len(content), begin + LONGEST_BOX) and depth:
            depth += {"{": 1, "}": -1}.get(content[end], 0)
            end += 1
        if not depth and not any(one <= begin < other for one, other, _, _ in marked):
            yield begin, end, content[begin:end], False
        begin = content.find(BOX, end)


def _draw_formula(formula: str, block: bool) -> Html | None:
    if not formula.count("}") == formula.count("{") <= DEEPEST or any(word in formula for word in DEFINES):
        return None
    try:
        tree = ElementTree.fromstring(convert(formula, display="block" if block else "inline"))
        return build_element("span", _rebuild_element(tree, formula), class_="formula block" if block else "formula")
    except Exception:  # noqa: BLE001 -- the converter raises all kinds of things on what a model may write
        return None


def _rebuild_element(node: ElementTree.Element, source: str | None = None) -> Html:
    name = node.tag.removeprefix(SPACE)
    # A name with a backslash is a command that the converter does not know: it has understood nothing of the formula.
    if name not in DRAWN or (node.tail or "").strip() or "\\" in (node.text or ""):
        raise ValueError(name)
    attributes = {key: value for key, value in node.attrib.items() if key in KEPT and _is_harmless(value)}
    children = (_rebuild_element(child) for child in node)
    return build_element(name, node.text, *children, alttext=source, **attributes)


def _is_harmless(value: str) -> bool:
    """Whether an attribute is a word of the language, or a length that a formula may have."""
    length = LENGTH.fullmatch(value)
    if length is None:
        return WORD.fullmatch(value) is not None
    return length[1].strip("+-.") != "" and NARROWEST <= float(length[1]) <= WIDEST[length[2]]
