"""Hostile texts in every field of a run: nothing of them runs, loads, leads away, or becomes more than text."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import VIEWS, OpenTab, Viewer, build_hash, export_runs
from hostile_texts import PAYLOADS

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("hostile viewer")]
GROUPS = range(len(PAYLOADS))


def rename(parts: tuple[object, ...]) -> tuple[object, ...]:
    """The address of a view in the hostile run."""
    return tuple(
        {"first": "hostile", 8: 5, 12: 6, "maths": "plain", "sampled": "greedy", 2: 0}.get(part, part) for part in parts
    )


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_hostile_runs_are_harmless(open_tab: OpenTab, hostile_viewer: Viewer, name: str) -> None:
    parts, query = VIEWS[name]
    tab = open_tab(hostile_viewer.url)
    tab.open()
    if name == "problem":
        found = [row["id"] for row in tab.read("problems", run="hostile")["problems"]]
        views: list[tuple[tuple[object, ...], dict[str, object]]] = [
            (("run", "hostile", "problem", one), {}) for one in found[:12]
        ]
    elif name == "compare":
        views = [(parts, {"run": ["hostile", "other"]})]
    else:
        views = [(rename(parts), query)]
    for place, words in views:
        tab.open(*place, **words).check_harmless()
        tab.page.evaluate("() => document.querySelectorAll('details').forEach(each => { each.open = true; })")
        tab.check_harmless()
        tab.check_fits()


def test_every_hostile_group_and_answer_is_harmless(open_tab: OpenTab, hostile_viewer: Viewer) -> None:
    """Every payload as question, gold, text, prompt, subject, part and reason: side by side, rendered, raw, tokens."""
    tab = open_tab(hostile_viewer.url).open()
    for group in GROUPS:
        tab.open("run", "hostile", "step", 5, "group", group).check_harmless()
    for group in GROUPS:
        for view in ("rendered", "raw", "tokens") if group < 8 else ("rendered",):
            tab.open("run", "hostile", "step", 5, "group", group, "answer", 1, tab=view).check_harmless()


def test_hostile_names_are_harmless(open_tab: OpenTab, hostile_viewer: Viewer) -> None:
    """Names of folders, tasks, decodings and files."""
    tab = open_tab(hostile_viewer.url).open()
    tab.check_harmless()
    keys = [card["key"] for card in tab.read("runs")["runs"]]
    assert len(keys) > 30
    for key in [key for key in keys if key not in {"hostile", "other"}][:12]:
        tab.open("run", key).check_harmless()
    evaluated = tab.read("evaluations", run="hostile")["evaluations"]
    assert len({one["task"] for one in evaluated}) > 3
    for one in evaluated:
        tab.open("run", "hostile", "evaluation", one["step"], one["task"], one["decoding"]).check_harmless()


@pytest.mark.parametrize(
    "payload", [payload for payload in PAYLOADS if payload.strip() and "\ud800" not in payload][:40]
)
def test_hostile_addresses_are_harmless(open_tab: OpenTab, hostile_viewer: Viewer, payload: str) -> None:
    """An address may come from anywhere."""
    tab = open_tab(hostile_viewer.url)
    tab.expected = ("Failed to load resource",)
    short = payload[:300]
    for place in (
        build_hash("run", short),
        build_hash("run", "hostile", "step", 5, q=short, subject=short, sort=short, verdict=short),
        build_hash("run", "hostile", m=short, smooth=short, tab=short),
        build_hash("compare", run=[short, "hostile"], tab=short),
        build_hash(short, short),
    ):
        tab.page.goto(f"{hostile_viewer.url}/{place}")
        tab.page.wait_for_selector("main h1, main [role=alert]")
        tab.check_harmless()


def test_a_hostile_search_is_harmless(open_tab: OpenTab, hostile_viewer: Viewer) -> None:
    """Its hits show what was found, and no more."""
    tab = open_tab(hostile_viewer.url).open("run", "hostile", "step", 5, q="hacked")
    tab.page.locator("main mark").first.wait_for()
    tab.check_harmless()


def test_a_hostile_export_is_harmless(open_tab: OpenTab, tmp_path: Path, hostile_viewer: Viewer, hostile: Path) -> None:
    """One page, opened from the disk: its data must not end the script that holds them."""
    export_runs([hostile / "hostile"], tmp_path / "page.html", tmp_path / "cache")
    home = (tmp_path / "page.html").as_uri()
    tab = open_tab(home)
    for parts in (("run", "hostile"), ("run", "hostile", "step", 5), ("run", "hostile", "step", 5, "group", 1)):
        tab.page.goto(home + build_hash(*parts))
        tab.wait().check_harmless()
