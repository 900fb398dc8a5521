"""Every view, as a browser draws it: readable in light and dark, for screen readers, and on a phone."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import VIEWS, OpenTab, Viewer

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("viewer in light and dark")]


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_serious_for_axe(open_tab: OpenTab, viewer: Viewer, axe: str, name: str) -> None:
    """In light, and in dark with a narrow window."""
    parts, query = VIEWS[name]
    for scheme, width in (("light", 1280), ("dark", 390)):
        tab = open_tab(viewer.url, width, color_scheme=scheme)
        tab.open(*parts, **query).check_accessible(axe)
        tab.check_fits()


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_there(open_tab: OpenTab, viewer: Viewer, name: str) -> None:
    """Alone, by its address: a heading, a title, no error; again after it is loaded anew."""
    parts, query = VIEWS[name]
    tab = open_tab(viewer.url).open(*parts, **query)
    assert tab.page.locator("main h1").count() == 1
    assert tab.page.locator("main [role=alert]").count() == 0
    heading, address, title = tab.page.inner_text("main h1"), tab.hash(), tab.page.title()
    assert len(title) > 3
    tab.page.reload()
    tab.wait()
    assert (tab.page.inner_text("main h1"), tab.hash(), tab.page.title()) == (heading, address, title)


def test_the_theme_can_be_changed(open_tab: OpenTab, viewer: Viewer) -> None:
    """By a key, and it stays when the page is loaded anew."""
    tab = open_tab(viewer.url, color_scheme="light").open()
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(paper)
    tab.press("t")  # the other one than the system has
    dark = tab.page.evaluate(paper)
    assert dark != light
    tab.page.reload()
    tab.wait()
    assert tab.page.evaluate(paper) == dark


def test_it_prints(tab: Any) -> None:
    """On white paper, whatever the theme."""
    tab.page.emulate_media(media="print", color_scheme="dark")
    tab.open("run", "first")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_parts_of_the_page_have_roles(tab: Any) -> None:
    """A main part, a way there for the keyboard, tables with captions, and heads that say how they are sorted."""
    tab.open()
    assert tab.page.locator("main").count() == 1
    assert tab.page.locator("html[lang]").count() == 1
    for table in tab.page.locator("main table").all():
        assert table.locator("caption").count() == 1
        assert table.locator("th[scope=col]").count() > 1
    assert tab.page.locator("th[aria-sort]").count() >= 1
