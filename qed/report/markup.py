"""Build HTML that is escaped by default: only `Html` is markup, and any other string, such as model output, is text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

VOID = ("meta", "br", "hr")
# Control characters, bidirectional marks and other invisible characters can disguise a text. The two joiners (U+200C,
# U+200D) are kept, because some scripts and emoji need them.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
CONTROL_PICTURES = 0x2400


class Html(str):
    """Finished markup; every other string is escaped when it enters the page."""

    __slots__ = ()


def escape_text(content: object) -> Html:
    """Escape a text and make hidden characters visible; `Html` is returned unchanged."""
    if isinstance(content, Html):
        return content
    return Html(html.escape(HIDDEN.sub(_show_hidden, str(content)), quote=True))


def build_element(tag: str, *children: object, **attributes: object) -> Html:
    """Build an element. Attributes that are None are omitted; `class_` becomes class, `aria_label` aria-label."""
    pairs = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape_text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Html(f"<{tag}{pairs}>")
    return Html(f"<{tag}{pairs}>{join_html(*children)}</{tag}>")


def join_html(*children: object) -> Html:
    """Concatenate the children, escaped where they are not `Html`; None is skipped."""
    return Html("".join(escape_text(child) for child in children if child is not None))


def build_table(
    columns: Sequence[str],
    rows: Iterable[tuple[object, Sequence[object]]],
    caption: str = "",
    kind: str | None = None,
    heads: Mapping[str, Html] | None = None,
) -> Html:
    """Build a table whose rows have a title and cells; `heads` replaces column names with markup.

    A narrow screen shows each row as a list, with the column names from `data-label`.
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
    title = build_element("caption", caption) if caption else None
    return build_element("table", title, build_element("thead", head), build_element("tbody", *body), class_=kind)


def _show_hidden(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(CONTROL_PICTURES + code)
    return f"⟨U+{code:04X}⟩"
