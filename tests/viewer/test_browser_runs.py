"""The list of runs and the page of a run: what happened, curves, settings, logs."""

from __future__ import annotations

import pytest
from browsing import OpenTab, Tab, Viewer

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("viewer of runs")]


def test_runs_are_listed_with_status_and_figures(tab: Tab) -> None:
    tab.open()
    rows = {row.inner_text().split()[0]: row for row in tab.rows().all()}
    texts = [row.inner_text() for row in tab.rows().all()]
    assert len(texts) == 7
    for name, status in (
        ("first", "done"),
        ("a-failed-run", "failed"),
        ("a-stopped-run", "stopped"),
        ("a-hung-run", "hung"),
    ):
        (text,) = (text for text in texts if name in text.split())
        assert status in text.lower(), (name, text)
    (first,) = (text for text in texts if "first" in text.split())
    assert "new:tiny" in first
    assert "%" in first
    assert tab.page.locator("main table svg").count() >= 3
    assert rows


def test_runs_sort_and_filter(tab: Tab) -> None:
    """By any column, and by a word; both are in the address."""
    tab.open().sort("run")
    tab.leads("sort")
    before = [row.inner_text() for row in tab.rows().all()]
    tab.sort("run")
    tab.page.wait_for_function(
        "first => document.querySelector('main tbody tr:not([aria-hidden])').innerText !== first", arg=before[0]
    )
    tab.page.locator("main input[type=search]").first.fill("hung")
    tab.page.wait_for_function("() => document.querySelectorAll('main tbody tr:not([aria-hidden])').length === 1")
    tab.leads("hung")


def test_alarms_are_seen_in_the_list(tab: Tab) -> None:
    assert "alarm" in tab.open().text().lower()


def test_a_run_opens_from_the_list(tab: Tab) -> None:
    tab.open().page.locator("main table a").filter(has_text="first").first.click()
    tab.leads("#/run/first").wait()
    assert "first" in tab.page.inner_text("main h1")


def test_a_run_shows_curves(tab: Tab) -> None:
    """Rewards, evaluations with intervals, phases and stage times."""
    tab.open("run", "first")
    assert tab.page.locator("main svg").count() >= 3
    said = tab.text().lower()
    for word in ("reward", "accuracy", "maths", "sft", "grpo", "time"):
        assert word in said, word


def test_metrics_are_chosen_by_a_regular_expression(tab: Tab) -> None:
    """The address keeps it; a bad expression is no error of the page."""
    tab.open("run", "first", m="^time/")
    names = tab.page.locator("main figure h3").all_inner_texts()
    assert len(names) >= 5
    assert not [name for name in names if "reward" in name.lower()]
    tab.open("run", "first", m="(")
    assert tab.page.locator("main h1").count() == 1


def test_curves_are_smoothed(tab: Tab) -> None:
    """The drawing changes, and the address says so."""
    tab.open("run", "first")
    draw = "() => [...document.querySelectorAll('main svg path')].map(each => each.getAttribute('d')).join(' ')"
    before = tab.page.evaluate(draw)
    tab.page.get_by_label("moothing", exact=False).first.focus()
    tab.press("ArrowRight", "ArrowRight", "ArrowRight")
    tab.leads("smooth")
    assert tab.page.evaluate(draw) != before


def test_a_point_of_a_curve_leads_to_its_step(tab: Tab) -> None:
    tab.open("run", "first", m="^reward/mean$")
    chart = tab.page.locator("main figure svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    tab.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + box["height"] / 2)
    tab.page.mouse.click(box["x"] + 0.7 * box["width"], box["y"] + box["height"] / 2)
    tab.leads("#/run/first/step/").wait()


def test_settings_have_origins_and_differences(tab: Tab) -> None:
    """Where each comes from, and what another run has instead."""
    tab.open("run", "first", "settings")
    assert "the command line" in tab.text()
    assert "rl.learner.lr" in tab.text()
    tab.page.locator("main select").first.select_option("faster")
    tab.leads("faster")
    tab.page.get_by_text("0.003").first.wait_for()


def test_events_and_alarms_are_listed(tab: Tab) -> None:
    said = tab.open("run", "first", "events").text()
    for word in ("finished", "alarm", "sampler_check", "held-out problems did not"):
        assert word in said, word


def test_logs_are_read_by_attempt_and_rank(tab: Tab) -> None:
    """Colours of terminals are shown as signs."""
    tab.open("run", "first", "logs")
    assert "step 12: loss" in tab.text()
    options = tab.page.locator("main select option").all_inner_texts()
    (rank,) = (option for option in options if "rank_1.log" in option)
    tab.page.locator("main select").select_option(label=rank)
    tab.page.get_by_text("rank 1 waits").wait_for()
    assert "\x1b" not in tab.text()


def test_the_command_is_there_to_copy(tab: Tab) -> None:
    tab.open("run", "first")
    assert "qed pipeline fractions.yaml" in tab.text()
    tab.page.get_by_role("button", name="opy").first.click()
    assert "qed pipeline fractions.yaml --rl.learner.lr" in tab.page.evaluate("navigator.clipboard.readText()")


def test_cursors_of_the_curves_are_linked(tab: Tab) -> None:
    """Pointing at one curve reads all of them at the same step."""
    tab.open("run", "first")
    charts = tab.page.locator("main figure svg")
    charts.nth(2).scroll_into_view_if_needed()
    box = charts.nth(2).bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    values = tab.page.locator("main figure .cursor-values b")
    values.nth(1).wait_for()
    assert len({value for value in values.all_inner_texts() if value.startswith("step")}) <= 2
    assert values.count() >= 3


def test_an_evaluation_alone_is_a_run(tab: Tab) -> None:
    """A folder of `qed evaluate` is listed and opened."""
    tab.open("run", "evaluated", "evaluations")
    assert "maths" in tab.text()


def test_an_alarm_is_marked_on_the_curves(tab: Tab) -> None:
    """And is spelled out."""
    assert "The mean reward rose" in tab.open("run", "first").text()


def test_addresses_survive_a_restart(open_tab: OpenTab, viewer: Viewer) -> None:
    """The state is in the address alone: another tab without any history shows the same."""
    first = open_tab(viewer.url).open("run", "first", m="^time/", smooth="0.5")
    second = open_tab(viewer.url)
    second.page.goto(first.page.url)
    second.wait()
    assert second.text() == first.text()
