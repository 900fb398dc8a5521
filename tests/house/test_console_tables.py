"""Tables of the console show texts as they are."""

from __future__ import annotations

import io

from rich.console import Console as RichConsole

from qed.console.live import Console


def test_titles_and_heads_of_tables_are_no_markup() -> None:
    console, out = Console(), io.StringIO()
    console.rich = RichConsole(file=out, width=80)
    console.table("rows[v2], by level", ("[a] and a long name of a column",), [("[b]",)])
    assert all(text in out.getvalue() for text in ("rows[v2], by level", "[a] and", "[b]"))
