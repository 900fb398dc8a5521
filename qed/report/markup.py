"""HTML that escapes by default: a plain string is text, and only `Html` is markup. Model text stays text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

VOID = ("meta", "br", "hr")
# Control characters, marks that turn the direction of writing, and other invisible ones could make a text read as what
# it is not. The two joiners stay: scripts and emoji need them.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
CONTROL_PICTURES = 0x2400


class Html(str):
    """Markup that is ready; every other string is escaped where it enters the page."""

    __slots__ = ()


def escape_text(content: object) -> Html:
    """Text as it may stand in a page: escaped, with hidden characters made visible."""
    if isinstance(content, Html):
        return content
    return Html(html.escape(HIDDEN.sub(_format_cell, str(content)), quote=True))


def build_element(tag: str, *children: object, **attributes: object) -> Html:
    """An element. Attributes that are None are left out; `class_` and `aria_label` are written class and aria-label."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape_text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Html(f"<{tag}{named}>")
    return Html(f"<{tag}{named}>{join_html(*children)}</{tag}>")


def join_html(*children: object) -> Html:
    """Several pieces one after the other; None is nothing."""
    return Html("".join(escape_text(child) for child in children if child is not None))


def build_table(
    columns: Sequence[str],
    rows: Iterable[tuple[object, Sequence[object]]],
    caption: str = "",
    kind: str | None = None,
    heads: Mapping[str, Html] | None = None,
) -> Html:
    """A table whose rows have a title and cells; `heads` draws a column's head in place of its name.

    A narrow screen shows each row as a list, with the names of the columns from `data-label`.
    """
    head = build_element("tr", *(build_element("th", (heads or {}).get(name, name), scope="col") for name in columns))
    body = [
        build_element(
            "tr",
            build_element("th", title, scope="row"),
            *(build_element("td", cell, data_label=name) for name, cell in zip(columns[1:], cells, strict=True)),
        )
        for title, cells in rows
    ]
    told = build_element("caption", caption) if caption else None
    return build_element("table", told, build_element("thead", head), build_element("tbody", *body), class_=kind)


def _format_cell(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(CONTROL_PICTURES + code)
    return f"⟨U+{code:04X}⟩"
