"""Everything by the keyboard."""

from __future__ import annotations

import pytest
from browsing import STEP, Tab

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("viewer of runs")]
UP = (
    ((*STEP, "group", 1, "answer", 2), "#/run/first/step/8/group/1"),
    ((*STEP, "group", 1), "#/run/first/step/8"),
    (STEP, "#/run/first"),
    (("run", "first"), "#/"),
    (("run", "first", "suspects"), "#/run/first"),
)


def test_from_the_list_to_an_answer_and_back(tab: Tab) -> None:
    """With j, Enter and u alone."""
    tab.open("run", "first").page.keyboard.press("u")
    tab.page.wait_for_function("() => location.hash === '#/' || location.hash === ''")
    tab.wait().press("j", "Enter")
    tab.leads("#/run/").wait()


def test_rows_are_chosen_and_opened(tab: Tab) -> None:
    """The third row of a step, by its keys, is an answer or its group."""
    tab.open(*STEP).press("j", "j", "k", "j", "Enter")
    tab.leads("/group/").wait()


@pytest.mark.parametrize(("parts", "address"), UP, ids=lambda value: str(value)[-30:])
@pytest.mark.parametrize("key", ["u", "Backspace"])
def test_up_leads_up(tab: Tab, parts: tuple[object, ...], address: str, key: str) -> None:
    tab.open(*parts).press(key)
    tab.page.wait_for_function(
        "address => (location.hash.split('?')[0] || '#/') === address", arg=address.replace("8/group/1", "8/group/1")
    )


def test_arrows_lead_to_neighbours(tab: Tab) -> None:
    """Of a group and of an answer."""
    tab.open(*STEP, "group", 1).press("ArrowRight")
    tab.leads("/group/2").wait().press("ArrowLeft")
    tab.leads("/group/1").wait()
    tab.open(*STEP, "group", 1, "answer", 2).press("ArrowRight")
    tab.leads("/answer/3").wait().press("[")
    tab.leads("/answer/2").wait().press("]")
    tab.leads("/answer/3")


def test_slash_focuses_the_search(tab: Tab) -> None:
    """And what is typed there is text, not commands."""
    tab.open(*STEP).press("/")
    assert tab.page.evaluate("document.activeElement.matches('input')")
    address = tab.hash()
    tab.page.keyboard.type("ju?t")
    assert tab.page.evaluate("document.activeElement.value") == "ju?t"
    assert tab.hash().split("?")[0] == address.split("?")[0]


def test_help_lists_the_keys(tab: Tab) -> None:
    """It opens with a question mark; Escape closes it, and so does going to another page."""
    tab.open()
    tab.open(*STEP).press("?")
    help_box = tab.page.locator("dialog[open], [role=dialog]")
    help_box.wait_for()
    said = help_box.inner_text()
    for word in ("Enter", "search", "theme"):
        assert word.lower() in said.lower(), word
    tab.press("Escape")
    closed = "() => !document.querySelector('dialog[open], [role=dialog]')"
    tab.page.wait_for_function(closed)
    tab.press("?")
    help_box.wait_for()
    tab.page.go_back()
    tab.page.wait_for_function(closed)


def test_c_compares_selected_runs(tab: Tab) -> None:
    tab.open()
    for box in tab.page.locator("main table input[type=checkbox]").all()[:2]:
        box.check()
    tab.press("c")
    tab.leads("#/compare?")


def test_keys_of_an_answer(tab: Tab) -> None:
    """Its three forms, the next signal, the extreme tokens, the grader."""
    tab.open(*STEP, "group", 0, "answer", 0).press("2")
    tab.leads("tab=tokens").press("s")
    tab.leads("signal=").press("n")
    tab.leads("token=").press("3")
    tab.leads("tab=raw").press("e")
    tab.page.get_by_text("cleaned").first.wait_for()


def test_everything_is_reached_by_tab(tab: Tab) -> None:
    """The focus is seen, and passes the links and buttons of the page in turn."""
    tab.open()
    seen = set()
    for _ in range(12):
        tab.press("Tab")
        seen.add(tab.page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
        outline = tab.page.evaluate(
            "(() => { const style = getComputedStyle(document.activeElement);"
            " return style.outlineStyle + style.outlineWidth + style.boxShadow; })()"
        )
        assert outline not in ("none0pxnone", "auto0pxnone")
    assert len(seen) >= 8


def test_the_focus_moves_with_the_view(tab: Tab) -> None:
    """A reader of screens hears the new heading."""
    tab.open()
    tab.page.evaluate("location.hash = '#/run/first/suspects'")
    tab.leads("suspects").wait()
    tab.page.wait_for_function("() => document.activeElement.matches('main h1, main')")
