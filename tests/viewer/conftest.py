"""What the tests of the viewer share: run folders, a viewer of them, and a browser for each worker."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from browsing import CHROMIUM, FLAGS, OpenTab, Tab, Viewer, start_viewer
from making_views import make_hostile_names, make_hostile_run, make_views


@pytest.fixture(scope="session")
def views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs to look at."""
    place = tmp_path_factory.mktemp("views")
    make_views(place)
    return place


@pytest.fixture(scope="session")
def viewer(views: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer of these runs."""
    with start_viewer([views], tmp_path_factory.mktemp("cache")) as running:
        yield running


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with hostile texts and names."""
    place = tmp_path_factory.mktemp("hostile")
    make_hostile_run(place)
    make_hostile_run(place, "other")
    make_hostile_names(place / "names", most=40)
    return place


@pytest.fixture(scope="session")
def hostile_viewer(hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer of these runs."""
    with start_viewer([hostile], tmp_path_factory.mktemp("cache")) as running:
        yield running


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The distribution's browser, once for a worker."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_tab(chromium: Any) -> Iterator[OpenTab]:
    """Opens tabs, and fails at the end if a page did what it must not."""
    tabs: list[Tab] = []

    def call(home: str, width: int = 1280, height: int = 900, **options: Any) -> Tab:
        context = chromium.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **options)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        tabs.append(Tab(context.new_page(), home))
        return tabs[-1]

    yield call
    for tab in tabs:
        tab.page.context.close()
    for tab in tabs:
        tab.check()


@pytest.fixture
def tab(open_tab: OpenTab, viewer: Viewer) -> Tab:
    """A tab at the viewer of the folder of runs."""
    return open_tab(viewer.url)


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
