"""A run that is written while it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import OpenTab, Viewer, start_viewer
from making_views import LiveRun

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("live viewer")]


@pytest.fixture
def live(tmp_path: Path) -> LiveRun:
    """A run with a few steps, which goes on when it is told to."""
    return LiveRun(tmp_path / "runs")


@pytest.fixture
def live_viewer(live: LiveRun, tmp_path: Path) -> Iterator[Viewer]:
    """A viewer of it."""
    with start_viewer([live.folder.parent], tmp_path / "cache") as running:
        yield running


def test_a_live_run_streams_in(live_viewer: Viewer, live: LiveRun, open_tab: OpenTab) -> None:
    """New steps appear in the curves without loading anew; the step's answers are there at once."""
    tab = open_tab(live_viewer.url).open("run", "live", m="^reward/mean$")
    assert "live" in tab.text().lower()
    draw = "() => [...document.querySelectorAll('main svg path')].map(each => each.getAttribute('d')).join(' ')"
    before = tab.page.evaluate(draw)
    for _ in range(3):
        last = live.advance()
    tab.page.wait_for_function(f"before => ({draw})() !== before", arg=before)
    tab.page.get_by_text(str(last), exact=False).first.wait_for()
    tab.open("run", "live", "step", last)
    assert tab.rows().count() == 36


def test_steps_that_a_resumed_run_makes_again_replace_the_earlier_ones(
    live_viewer: Viewer, live: LiveRun, open_tab: OpenTab
) -> None:
    """The page has the curves of seven steps when it is told of another sixth one."""
    draw = "() => [...document.querySelectorAll('main svg path')].map(each => each.getAttribute('d')).join(' ')"
    live.advance()
    live.advance()

    def resume(route: Route) -> None:
        live.run.truncate(5)
        live.step = 5
        rows = f'{{"rows": [{{"step": {live.advance()}, "phase": "grpo"}}]}}'
        route.fulfill(content_type="text/event-stream", body=f"retry: 600000\n\nevent: metrics\ndata: {rows}\n\n")

    first, second = open_tab(live_viewer.url), open_tab(live_viewer.url)
    first.page.route("**/api/live?**", resume)
    with first.page.expect_response("**/api/live?**"):
        first.open("run", "live", m="^reward/mean$")
    after = second.open("run", "live", m="^reward/mean$").page.evaluate(draw)
    first.page.wait_for_function(f"after => ({draw})() === after", arg=after)


def test_a_torn_line_is_no_error(live_viewer: Viewer, live: LiveRun, open_tab: OpenTab) -> None:
    live.tear()
    tab = open_tab(live_viewer.url).open("run", "live")
    assert tab.page.locator("main [role=alert]").count() == 0
    assert "99999" not in tab.text()


def test_the_end_of_a_run_is_seen(live_viewer: Viewer, live: LiveRun, open_tab: OpenTab) -> None:
    """The status changes by itself."""
    tab = open_tab(live_viewer.url).open("run", "live")
    live.finish()
    tab.page.wait_for_function("() => /\\bdone\\b/i.test(document.querySelector('main').innerText)")


def test_a_run_that_ends_before_its_page_listens(live_viewer: Viewer, live: LiveRun, open_tab: OpenTab) -> None:
    """The page has been told of a live run; it learns of the end when it asks for what is new."""
    tab = open_tab(live_viewer.url)
    tab.page.route("**/api/live?**", lambda route: (live.finish(), route.continue_()))
    tab.open("run", "live")
    tab.page.wait_for_function("() => /\\bdone\\b/i.test(document.querySelector('main').innerText)")


def test_a_run_that_is_written_fast_stays_readable(live_viewer: Viewer, live: LiveRun, open_tab: OpenTab) -> None:
    """While a thread appends, pages open without an error."""
    live.seconds = 0.1
    tab = open_tab(live_viewer.url)
    with live:
        for parts in ((), ("run", "live"), ("run", "live", "step", 5), ("run", "live", "suspects"), ("run", "live")):
            tab.open(*parts)
            assert tab.page.locator("main [role=alert]").count() == 0


def test_addresses_survive_a_restart(open_tab: OpenTab, live: LiveRun, tmp_path: Path) -> None:
    """The server ends and starts again at the same port; the open tab goes on."""
    with start_viewer([live.folder.parent], tmp_path / "cache") as running:
        tab = open_tab(running.url)
        tab.expected = ("Failed to load resource", "ERR_")
        tab.open("run", "live", "step", 5, "group", 1)
        heading, port = tab.page.inner_text("main h1"), int(running.url.rpartition(":")[2])
    with start_viewer([live.folder.parent], tmp_path / "cache", port):
        tab.page.reload()
        tab.wait()
        assert tab.page.inner_text("main h1") == heading
