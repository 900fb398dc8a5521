"""One problem through training, run against run, suspects, and evaluations."""

from __future__ import annotations

import pytest
from browsing import EVALUATED, Tab

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("viewer of runs")]


def test_problems_are_listed_and_lead_to_one(tab: Tab) -> None:
    tab.open("run", "first", "problems")
    known = tab.read("problems", run="first")["problems"]
    assert tab.rows().count() == len(known) > 10
    tab.page.locator("main table a").first.click()
    tab.leads("#/run/first/problem/").wait()


def test_a_problem_is_followed_through_training(tab: Tab) -> None:
    """Its pass rate as a line, when it was first right, and what was written at each step and evaluation."""
    tab.open("run", "first", "problem", "train-002")
    told = tab.read("problem", run="first", id="train-002")
    assert len(told["training"]) > 2
    assert len(told["evaluations"]) > 4
    assert tab.page.locator("main svg").count() >= 1
    said = tab.text().lower()
    assert "first right" in said or "first time right" in said or "never" in said
    links = {link.get_attribute("href") for link in tab.page.locator("main a[href*='/group/']").all()}
    assert any("/step/" in link for link in links)
    assert any("/eval/" in link for link in links)


def test_texts_of_a_problem_are_compared_between_steps(tab: Tab) -> None:
    """What changed between two steps is marked."""
    tab.open("run", "first", "problem", "train-002")
    tab.page.locator("main ins, main del, main mark").first.wait_for()


def test_runs_are_chosen_and_compared(tab: Tab) -> None:
    """Two rows are selected in the list; a button leads on."""
    tab.open()
    boxes = tab.page.locator("main table input[type=checkbox]")
    for name in ("first", "faster"):
        tab.rows().filter(has=tab.page.get_by_role("link", name=name, exact=True)).locator(
            "input[type=checkbox]"
        ).check()
    assert boxes.count() == 7
    tab.page.get_by_role("button", name="ompare").or_(tab.page.get_by_role("link", name="ompare")).first.click()
    tab.leads("#/compare?").leads("run=first").leads("run=faster").wait()


def test_two_runs_are_tested_problem_by_problem(tab: Tab) -> None:
    """The paired test with its interval, and the problems that one run answers and the other does not."""
    tab.open("compare", run=["first", "faster"])
    told = tab.read("compare", a="first", b="faster")
    task = next(one for one in told["tasks"] if one["gained"])
    said = tab.text()
    assert "McNemar" in said or "p =" in said or "p-value" in said.lower()
    assert task["gained"][0]["question"].split("$")[0].strip() in said
    assert "rl.learner.lr" in said
    assert "algebra" in said


def test_curves_of_runs_are_overlaid(tab: Tab) -> None:
    """Three runs; runs that differ in their seed alone are a band."""
    tab.open("compare", run=["first", "second-seed", "faster"])
    assert tab.page.locator("main svg").count() >= 2
    said = tab.text()
    assert "second-seed" in said
    assert "faster" in said


def test_all_seeds_of_two_arms_are_compared(tab: Tab) -> None:
    """Two seeds against one run, by the test over problems and seeds; votes in place of the accuracy."""
    runs = ["first", "second-seed", "faster"]
    tab.open("compare", run=runs, a="first", b="faster", measure="maj@2")
    told = tab.read("arms", a="first\nsecond-seed", b="faster", measure="maj@2")
    assert told["tasks"]
    assert told["tasks"][0]["test"]["seeds"] == [2, 1]
    tab.page.get_by_role("heading", name="Seeds together").wait_for()
    said = tab.text()
    assert "A is first and 1 more seed, B is faster" in said
    assert "p (Holm)" in said
    assert "maj@2" in said


def test_answers_of_two_runs_are_diffed(tab: Tab) -> None:
    """From the list of problems that changed."""
    tab.open("compare", run=["first", "faster"])
    tab.page.locator("main button.item").first.click()
    tab.leads("problem=")
    tab.page.locator("main ins, main del, main mark").first.wait_for()


def test_a_run_is_compared_with_itself(tab: Tab) -> None:
    """Step against step."""
    tab.open("compare", run=["first", "first"], step_a=0, step_b=12)
    assert "12" in tab.text()
    assert tab.page.locator("main [role=alert]").count() == 0


def test_suspects_are_counted_and_lead_to_answers(tab: Tab) -> None:
    """Every kind that this run has on purpose."""
    tab.open("run", "first", "suspects")
    told = {kind["kind"]: kind for kind in tab.read("suspects", run="first")["kinds"]}
    for kind in (
        "format_without_answer",
        "reward_without_correct",
        "repetition",
        "garbled",
        "zero_spread",
        "truncated",
        "grader_timeout",
    ):
        assert told[kind]["count"] > 0, kind
        assert told[kind]["label"].lower() in tab.text().lower()
    tab.page.locator("main a[href*='/answer/']").first.click()
    tab.leads("/answer/").wait()


def test_evaluations_are_listed(tab: Tab) -> None:
    tab.open("run", "first", "evaluations")
    known = tab.read("evaluations", run="first")["evaluations"]
    assert tab.rows().count() >= len(known) == 16
    tab.page.locator("main table a").first.click()
    tab.leads("#/run/first/evaluation/").wait()


def test_an_evaluation_is_broken_down(tab: Tab) -> None:
    """Format × answer, subject × level with intervals, votes, and its problems."""
    tab.open("run", "first", "evaluation", *EVALUATED)
    said = tab.text().lower()
    for word in ("algebra", "geometry", "number theory", "level", "format", "maj"):
        assert word in said, word
    assert tab.page.locator("main table").count() >= 2
    tab.page.locator("main a[href*='/eval/']").first.click()
    tab.leads("/eval/").wait()
