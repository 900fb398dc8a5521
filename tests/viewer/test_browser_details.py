"""Details that a reader meets: numbers of problems, zoom, narrow windows, and what a live run changes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import EVALUATED, OpenTab, Tab, Viewer, start_viewer
from making_views import LiveRun

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("viewer details")]


@pytest.fixture
def live(tmp_path: Path) -> LiveRun:
    """A run with a few steps, which goes on when it is told to."""
    return LiveRun(tmp_path / "runs")


@pytest.fixture
def live_viewer(live: LiveRun, tmp_path: Path) -> Iterator[Viewer]:
    """A viewer of it."""
    with start_viewer([live.folder.parent], tmp_path / "cache") as running:
        yield running


def test_problems_of_a_decoding_are_counted_from_one(tab: Tab) -> None:
    """The groups of both decodings stand in one file, so their numbers in the address begin anywhere."""
    tab.open("run", "first", "eval", *EVALUATED)
    assert tab.rows().first.locator("th").inner_text().startswith("1 ")
    tab.rows().first.locator("th a").click()
    tab.leads("/answer/0").wait()
    assert "problem 1," in tab.text()
    assert "Problem 1" in tab.page.locator("nav.path").inner_text().split("\n")
    tab.page.get_by_role("link", name="problem 1, all answers side by side").click()
    tab.page.wait_for_function("() => document.querySelector('main h1').innerText === 'Problem 1'")
    assert tab.page.locator("nav.neighbours").inner_text().split() == ["←", "none", "before", "problem", "2", "→"]


def test_a_zoom_ends_with_its_button_or_a_key(tab: Tab) -> None:
    """A double click opens a step at once, so it cannot be what ends the zoom."""
    for way in ("key", "button"):
        tab.open("run", "first", zoom="3-6")
        button = tab.page.get_by_role("button", name="Whole run")
        assert button.is_enabled()
        if way == "key":
            tab.press("0")
        else:
            button.click()
        tab.page.wait_for_function("() => !location.hash.includes('zoom')")
        assert button.is_disabled()


def test_the_list_of_runs_fits_a_narrow_window(open_tab: OpenTab, viewer: Viewer) -> None:
    tab = open_tab(viewer.url, width=390).open()
    frame = "() => { const box = document.querySelector('.table-scroll'); return box.scrollWidth - box.clientWidth; }"
    assert tab.page.evaluate(frame) <= 1
    assert "grpo" in tab.text()


def test_the_accuracy_has_a_spark_line(tab: Tab) -> None:
    tab.open()
    assert tab.rows().filter(has_text="first").first.locator("svg[aria-label=accuracy] path").count() == 1


def test_the_last_step_of_a_live_run_learns_of_the_next(live_viewer: Viewer, live: LiveRun, open_tab: OpenTab) -> None:
    last = live.advance()
    with_next = f"step {last + 1} →"
    tab = open_tab(live_viewer.url)
    with tab.page.expect_response("**/api/live?**"):
        tab.open("run", "live", "step", last)
    assert with_next not in tab.text()
    live.advance()
    tab.page.get_by_role("link", name=with_next).click()
    tab.leads(f"/step/{last + 1}").wait()


def test_times_by_stage_follow_a_live_run(live_viewer: Viewer, live: LiveRun, open_tab: OpenTab) -> None:
    tab = open_tab(live_viewer.url).open("run", "live")
    read = "() => document.querySelector('.times')?.innerText ?? ''"
    before = tab.page.evaluate(read)
    for _ in range(3):
        live.advance()
    tab.page.wait_for_function(f"before => ({read})() !== before", arg=before)


def test_an_answer_marks_what_a_search_has_found(tab: Tab) -> None:
    """The thinking that folds it is opened; the next answer marks it too."""
    tab.open("run", "first", "step", 8, q="cross-multiply", fields="text")
    tab.page.locator("mark").first.wait_for()
    tab.rows().first.locator("th a").click()
    tab.leads("found=Cross").wait()
    tab.page.get_by_role("button", name="Next place").click()
    assert tab.page.locator("details[open] mark").first.inner_text() == "Cross-multiply"
    tab.press("ArrowRight").leads("answer/1").wait()
    assert tab.page.locator(".found").is_visible()


def test_a_problem_leads_to_its_way_through_training(tab: Tab) -> None:
    tab.open("run", "first", "step", 8, "group", 0).page.get_by_role("link", name="train-006").click()
    tab.leads("/problem/train-006").wait()


def test_a_log_begins_with_its_end(open_tab: OpenTab, viewer: Viewer) -> None:
    tab = open_tab(viewer.url, height=300).open("run", "first", "logs")
    log = "document.querySelector('pre.log')"
    tab.page.wait_for_function(f"() => {log}.scrollHeight - {log}.scrollTop - {log}.clientHeight <= 1")


def test_a_log_that_cannot_be_read_is_told(tab: Tab) -> None:
    """The end that is shown stays while it is followed; that of another log does not."""
    tab.expected = ("status of 404",)
    tab.open("run", "first", "logs")
    log = tab.page.locator("pre.log")
    shown = log.inner_text()
    assert shown
    tab.page.route("**/api/log*", lambda route: route.fulfill(status=404, json={"error": "It is not here."}))
    tab.page.get_by_label("Follow the end").check()
    tab.page.get_by_text("It is not here.").wait_for()
    assert log.inner_text() == shown
    tab.page.get_by_label("Follow the end").uncheck()
    with tab.page.expect_response("**/api/log*"):
        tab.page.locator(".logs select").evaluate("node => node.dispatchEvent(new Event('change'))")
    assert log.inner_text() == ""
    assert tab.page.get_by_role("button", name="Earlier").is_disabled()


def test_a_log_is_followed_no_longer_if_that_is_given_up_while_it_is_read(tab: Tab) -> None:
    held: list[Any] = []
    tab.open("run", "first", "logs")
    tab.page.route("**/api/log*", lambda route: held.append(route))
    follow = tab.page.get_by_label("Follow the end")
    with tab.page.expect_request("**/api/log*"):
        follow.check()
    follow.uncheck()
    with tab.page.expect_response("**/api/log*"):
        held[0].continue_()
    tab.page.wait_for_timeout(2500)  # longer than between two looks
    assert len(held) == 1


def test_settings_are_compared_with_the_run_that_was_chosen_last(tab: Tab) -> None:
    held: list[Any] = []
    tab.open("run", "first", "settings")
    tab.page.route("**/api/run?run=second-seed", lambda route: held.append(route))
    picker = tab.page.get_by_label("Difference to")
    with tab.page.expect_request("**/api/run?run=second-seed"):
        picker.select_option("second-seed")
    picker.select_option("faster")
    tab.page.get_by_text("settings differ.").wait_for()
    shown = tab.rows().all_inner_texts()
    with tab.page.expect_response("**/api/run?run=second-seed"):
        held[0].continue_()
    tab.page.wait_for_timeout(200)
    assert tab.rows().all_inner_texts() == shown


def test_tables_of_settings_and_events_keep_their_order_in_the_address(tab: Tab) -> None:
    for name, label in (("settings", "setting"), ("events", "event")):
        tab.open("run", "first", name).sort(label).leads("sort=")
        before = tab.rows().first.inner_text()
        tab.page.reload()
        assert tab.wait().rows().first.inner_text() == before


def test_paper_shows_every_chart(open_tab: OpenTab, viewer: Viewer) -> None:
    """On the screen a chart is drawn once it comes near."""
    tab = open_tab(viewer.url, height=400).open("run", "first")
    count = "() => document.querySelectorAll('.chart-place svg').length"
    places = tab.page.locator(".chart-place").count()
    assert tab.page.evaluate(count) < places
    tab.page.pdf()
    assert tab.page.evaluate(
        "() => [...document.querySelectorAll('.chart-place')].every(one => one.querySelector('svg'))"
    )


def test_the_point_of_an_evaluation_alone_opens_it(tab: Tab) -> None:
    """It has no training step to lead to; its interval is drawn beside it."""
    tab.open("run", "evaluated")
    chart = tab.page.locator("main figure svg").first
    assert chart.locator("path.line[d*=L]").count() == 1
    chart.click()
    tab.leads("/evaluation/0/maths/greedy").wait()


def test_keys_of_a_problem_and_of_a_comparison(tab: Tab) -> None:
    tab.open("run", "first", "problem", "train-002").press("j", "Enter")
    tab.leads("/run/first/eval/0/").wait()
    tab.open("compare", run=["first", "faster"]).press("/")
    assert tab.page.evaluate("document.activeElement.matches('input')")


def test_metrics_are_copied(tab: Tab) -> None:
    tab.open("run", "first", m="^reward/mean$").page.get_by_role("button", name="Copy the metrics as CSV").click()
    tab.page.get_by_text("Copied").first.wait_for()
    lines = tab.page.evaluate("() => navigator.clipboard.readText()").split("\r\n")
    assert lines[0] == "step,phase,reward/mean"
    assert lines[-2].startswith("12,")


def test_the_open_problem_of_a_comparison_stays_in_the_address(tab: Tab) -> None:
    """Another task keeps it open, and so does loading anew."""
    tab.open("compare", run=["first", "faster"])
    shown = tab.page.locator(".pair-answers h3")
    shown.wait_for()
    problem = shown.inner_text()
    tab.page.get_by_role("button", name="faster: maths, sampled answers").click()
    tab.page.wait_for_function("() => document.querySelector('.pair-view h2').innerText.includes('sampled')")
    tab.leads("problem=maths").page.reload()
    tab.wait().page.locator(".pair-answers h3").get_by_text(problem).wait_for()
