"""What leaves the viewer: copied tables, and static copies that are opened from the disk."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from browsing import STEP, OpenTab, Tab, Viewer, build_hash, export_runs

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("viewer of answers")]
FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def copy(tab: Tab, kind: str) -> str:
    """What a button puts into the clipboard."""
    tab.page.evaluate("navigator.clipboard.writeText('')")
    tab.page.locator("main").get_by_role("button", name=kind).first.click()
    tab.page.wait_for_function("() => navigator.clipboard.readText().then(text => text.length > 0)")
    return str(tab.page.evaluate("navigator.clipboard.readText()"))


def test_tables_copy_in_three_forms(tab: Tab) -> None:
    tab.open(*STEP, "group", 0)
    assert json.loads(copy(tab, "JSON"))
    rows = list(csv.reader(io.StringIO(copy(tab, "CSV"))))
    assert len(rows) == 7
    assert len({len(row) for row in rows}) == 1
    table = copy(tab, "Markdown").splitlines()
    assert table[0].startswith("|")
    assert len(table) == 8


def test_a_spreadsheet_takes_no_cell_for_a_formula(open_tab: OpenTab, hostile_viewer: Viewer) -> None:
    """Cells that would be formulas begin with an apostrophe; the table keeps its shape."""
    tab = open_tab(hostile_viewer.url)
    for group in range(72, 80):
        tab.open("run", "hostile", "step", 5, "group", group)
        rows = list(csv.reader(io.StringIO(copy(tab, "CSV"))))
        assert len({len(row) for row in rows}) == 1
        for row in rows[1:]:
            for cell in row:
                number = cell.replace("-", "", 1).replace(".", "", 1).isdigit()
                assert number or not cell.startswith(FORMULAS), cell[:50]


def test_markdown_keeps_its_columns(open_tab: OpenTab, hostile_viewer: Viewer) -> None:
    """Bars and line ends in a text do not make columns and rows."""
    tab = open_tab(hostile_viewer.url)
    for group in (65, 69, 78):
        tab.open("run", "hostile", "step", 5, "group", group)
        assert len(copy(tab, "Markdown").splitlines()) == 4


def test_a_page_on_the_disk_shows_the_same(open_tab: OpenTab, viewer: Viewer, views: Path, tmp_path: Path) -> None:
    """One file, without a server: the same text as the server's pages, no request."""
    export_runs([views / "first"], tmp_path / "page.html", tmp_path / "cache", "--steps", "8,9")
    home = (tmp_path / "page.html").as_uri()
    served = open_tab(viewer.url)
    tab = open_tab(home)
    for parts in ((*STEP,), (*STEP, "group", 0), (*STEP, "group", 0, "answer", 0), ("run", "first", "problems")):
        tab.page.goto(home + build_hash(*parts))
        tab.wait()
        assert tab.page.inner_text("main h1") == served.open(*parts).page.inner_text("main h1")
        assert tab.page.locator("main [role=alert]").count() == 0


def test_a_folder_on_the_disk_shows_the_same(open_tab: OpenTab, views: Path, tmp_path: Path) -> None:
    """Several runs in a folder, opened from the disk."""
    export_runs([views / "first", views / "faster"], tmp_path / "site", tmp_path / "cache", "--steps", "8")
    home = (tmp_path / "site" / "index.html").as_uri()
    tab = open_tab(home)
    for parts, query in (
        ((), {}),
        (("run", "first"), {}),
        (STEP, {}),
        ((*STEP, "group", 1, "answer", 2), {"tab": "tokens"}),
        (("compare",), {"run": ["first", "faster"]}),
    ):
        tab.page.goto(home + build_hash(*parts, **query))
        tab.wait()
        assert tab.page.locator("main [role=alert]").count() == 0


def test_what_a_static_copy_lacks_is_said(open_tab: OpenTab, views: Path, tmp_path: Path) -> None:
    """A step that was not chosen."""
    export_runs([views / "first"], tmp_path / "page.html", tmp_path / "cache", "--steps", "8")
    home = (tmp_path / "page.html").as_uri()
    tab = open_tab(home)
    tab.page.goto(home + build_hash("run", "first", "step", 10))
    tab.page.locator("main [role=alert]").first.wait_for()
    assert "copy" in tab.page.inner_text("main").lower()
