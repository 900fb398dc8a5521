"""From a step to the tokens of an answer, as a reader walks there."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import STEP, OpenTab, Tab, Viewer

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("viewer of answers")]
WHERE = {"run": "first", "step": 8}
ANSWER = (*STEP, "group", 0, "answer", 0)


def listed(tab: Tab) -> int:
    """How many answers the table of a step lists."""
    return int(tab.rows().count())


def choose(tab: Tab, label: str, value: str) -> None:
    """Choose from a list, and wait for the table."""
    tab.page.get_by_label(label, exact=True).first.select_option(value)


def test_a_step_lists_every_answer(tab: Tab) -> None:
    """With reward, advantage, verdict, length, end and source."""
    tab.open(*STEP)
    assert listed(tab) == 36
    said = tab.text()
    for word in ("expert", "replay", "greedy", "cut off", "right", "wrong"):
        assert word in said, word
    heads = " ".join(tab.page.locator("main thead").first.inner_text().lower().split())
    for column in ("reward", "advantage", "tokens", "source", "correct", "format"):
        assert column in heads, column


def test_columns_sort_and_the_address_keeps_it(tab: Tab) -> None:
    tab.open(*STEP).sort("reward")
    tab.leads("sort")
    rows = tab.read("step", **WHERE)["rows"]
    rewards = [reward for reward in rows["reward"] if reward is not None]
    best, worst = max(rewards), min(rewards)
    first = tab.rows().first.inner_text()
    tab.sort("reward")
    second = tab.rows().first.inner_text()
    ends = {f"{best:g}", f"{worst:g}"}
    assert first != second
    assert all(any(end in text for end in ends) for text in (first, second))
    address = tab.hash()
    tab.page.reload()
    tab.wait()
    assert tab.hash() == address
    assert tab.rows().first.inner_text() == second


@pytest.mark.parametrize(
    ("query", "keep"),
    [
        ({"verdict": "right"}, lambda row: row["correct"]),
        ({"verdict": "wrong"}, lambda row: row["correct"] is False),
        ({"cut": "1"}, lambda row: row["stop_reason"] == "length"),
        ({"source": "expert"}, lambda row: row["source"] == "expert"),
        ({"reward": "0.5.."}, lambda row: (row["reward"] or 0) >= 0.5),
        ({"tokens": "..60"}, lambda row: row["n_tokens"] <= 60),
        ({"subject": "geometry"}, lambda row: row["about"]["subject"] == "geometry"),
        ({"level": "2"}, lambda row: row["about"]["level"] == 2),
        ({"signal": "none"}, lambda row: row["about"]["reward_max"] - row["about"]["reward_min"] < 1e-9),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_filters_keep_the_right_answers(tab: Tab, query: dict[str, str], keep: Any) -> None:
    """By the address alone, as a bookmark does."""
    tab.open(*STEP, **query)
    table = tab.read("step", **WHERE)
    columns = table["rows"]
    rows = [{name: values[place] for name, values in columns.items()} for place in range(len(columns["group"]))]
    for row in rows:
        row["about"] = table["groups"][row["group"]]
    kept = sum(bool(keep(row)) for row in rows)
    assert 0 < kept < len(rows)
    assert listed(tab) == kept


def test_filters_are_chosen_by_hand(tab: Tab) -> None:
    """And are part of the address at once."""
    tab.open(*STEP)
    choose(tab, "Verdict", "right")
    tab.leads("verdict=right")
    assert 0 < listed(tab) < 36
    assert "wrong" not in tab.rows().first.inner_text()


def test_bars_of_the_histograms_are_filters(tab: Tab) -> None:
    tab.open(*STEP)
    bars = tab.page.locator("main .histogram [role=button], main svg [role=button], main .histogram button")
    assert bars.count() >= 4
    bars.first.focus()
    tab.press("Enter")
    tab.page.wait_for_function("() => /reward=|tokens=/.test(location.hash)")
    assert 0 < listed(tab) < 36


@pytest.mark.parametrize(("text", "regex"), [("think again", ""), ("numer.*care", "1")])
def test_a_search_finds_answers(tab: Tab, text: str, regex: str) -> None:
    """Plain and by a regular expression, with what stands around the hit."""
    tab.open(*STEP, q=text, **({"regex": regex} if regex else {}))
    hits = tab.read("search", **WHERE, q=text, regex=regex or "0", fields="text")
    found = {(hit["group"], hit["answer"]) for hit in hits["hits"]}
    assert found
    tab.page.locator("main mark").first.wait_for()
    tab.page.wait_for_function(
        "most => document.querySelectorAll('main table tbody tr:not([aria-hidden])').length <= most", arg=36
    )
    assert "think again" in tab.text() or "numer" in tab.text()


def test_a_bad_expression_is_explained(tab: Tab) -> None:
    tab.expected = ("400",)
    tab.open(*STEP, q="(", regex="1")
    tab.page.locator("main [role=alert], main .trouble").first.wait_for()


def test_a_step_leads_to_the_next(tab: Tab) -> None:
    tab.open(*STEP).press("ArrowRight")
    for step in (9, 8, 7):
        tab.leads(f"/step/{step}").page.get_by_role("heading", name=f"Step {step}").wait_for()
        tab.press("ArrowLeft")


def test_a_group_shows_its_answers_side_by_side(tab: Tab) -> None:
    """With bars of rewards and advantages, the gold answer and the prompt."""
    tab.open(*STEP, "group", 0)
    cards = tab.page.locator("main .columns > *")
    assert cards.count() == 6
    boxes = [card.bounding_box() for card in cards.all()[:2]]
    assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=2)
    assert boxes[0]["x"] < boxes[1]["x"]
    assert tab.page.locator("main .figure-bar").count() >= 12
    assert tab.page.locator("main .gold math").count() == 1
    assert "prompt" in tab.text()


def test_two_texts_are_compared(tab: Tab) -> None:
    """Any two, with what differs marked; the choice is in the address."""
    tab.open(*STEP, "group", 1)
    buttons = tab.page.get_by_role("button", name="Compare answer")
    buttons.nth(0).click()
    buttons.nth(1).click()
    tab.leads("a=0").leads("b=1")
    assert tab.page.locator("main .difference").locator("ins, del, mark").count() > 0


def test_an_answer_is_rendered(tab: Tab) -> None:
    """Formulas are MathML, thoughts are folded."""
    tab.open(*ANSWER)
    panel = tab.page.locator("main [role=tabpanel]")
    assert panel.locator("math mfrac").count() > 1
    thought = panel.locator("details").first
    assert thought.get_attribute("open") is None
    thought.locator("summary").click()
    assert (
        "denominator" in thought.inner_text()
        or "numerators" in thought.inner_text()
        or "simplify" in thought.inner_text()
    )


def test_an_answer_is_raw(tab: Tab) -> None:
    """Character by character."""
    tab.open(*ANSWER, tab="raw")
    answer = tab.read("answer", **WHERE, group=0, answer=0)["answer"]
    assert answer["text"] in [block.text_content() for block in tab.page.locator("main pre").all()]


def test_the_grader_explains_itself(tab: Tab) -> None:
    """The extracted answer against the gold one, and the steps that decided."""
    tab.open(*ANSWER)
    answer = tab.read("answer", **WHERE, group=0, answer=0)["answer"]
    assert answer["extracted"] in tab.text()
    tab.page.get_by_role("button", name="grader").click()
    tab.page.get_by_text("cleaned").first.wait_for()
    explained = tab.read("explain", **WHERE, group=0, answer=0)
    assert explained["reason"] in tab.text()


def test_an_answer_without_a_final_one_has_no_steps_of_the_grader(tab: Tab) -> None:
    rows = tab.open(*STEP).read("step", **WHERE)["rows"]
    places = zip(rows["group"], rows["answer"], rows["extracted"], strict=True)
    group, answer = next((group, answer) for group, answer, extracted in places if extracted is None)
    tab.open(*STEP, "group", group, "answer", answer)
    tab.page.get_by_role("button", name="grader").click()
    tab.page.get_by_text("No answer was found in the text.").wait_for()


def test_tokens_are_exact_and_have_signals(tab: Tab) -> None:
    """Every token of the answer, every signal in turn, a legend, and the raw number."""
    tab.open(*ANSWER, tab="tokens")
    answer = tab.read("answer", **WHERE, group=0, answer=0)
    tokens = tab.page.locator("main .tokens > *")
    assert tokens.count() == len(answer["tokens"])
    assert "".join(answer["pieces"]).startswith(answer["answer"]["text"][:40])
    assert set(answer["signals"]) >= {"logp", "entropy", "ratio", "kl_ref", "mismatch", "advantage"}
    for signal in ("entropy", "ratio", "kl_ref", "mismatch", "advantage", "mask"):
        choose(tab, "Colour", signal)
        tab.leads(f"signal={signal}")
        assert tab.page.locator("main .heat-legend li").count() >= 3, signal
        assert len({token.get_attribute("class") for token in tokens.all()[:80]}) >= 1
    tokens.nth(5).hover()
    readout = tab.page.locator("main .token-readout")
    assert f"token 6 of {len(answer['tokens'])}" in readout.inner_text()
    assert str(round(answer["signals"]["logp"][5], 6)) in readout.inner_text()


def test_the_likeliest_alternatives_are_listed(tab: Tab) -> None:
    tab.open(*ANSWER, tab="tokens")
    tab.page.locator("main .tokens > *").nth(3).click()
    table = tab.page.locator("main .token-readout table")
    assert table.locator("tbody tr").count() == 3
    assert "%" in table.inner_text()


def test_a_jump_leads_to_the_extreme_token(tab: Tab) -> None:
    """By a button and by a key; the token stands in the address."""
    tab.open(*ANSWER, tab="tokens")
    values = tab.read("answer", **WHERE, group=0, answer=0)["signals"]["logp"]
    lowest = min(range(len(values)), key=lambda place: values[place])
    tab.page.get_by_role("button", name="most extreme").click()
    tab.leads(f"token={lowest}")
    assert tab.page.locator(f"#token-{lowest}").get_attribute("aria-selected") == "true"
    assert tab.page.locator("main .plot-place svg").count() == 1
    tab.press("n")
    second = sorted(range(len(values)), key=lambda place: (values[place], place))[1]
    tab.leads(f"token={second}")


def test_answers_without_values_say_why(tab: Tab) -> None:
    """A row whose tokens have no values of the learner still shows log-probs."""
    tab.open(*STEP, "group", 3, "answer", 1, tab="tokens")
    found = tab.read("answer", **WHERE, group=3, answer=1)
    assert found["notes"]
    assert found["notes"][0][:30] in tab.text()


def test_a_missing_answer_is_explained(open_tab: OpenTab, viewer: Viewer) -> None:
    """An address of something that is not there is no blank page."""
    tab = open_tab(viewer.url)
    tab.expected = ("404", "Failed to load resource")
    for parts in (
        ("run", "nowhere"),
        ("run", "first", "step", 999),
        (*STEP, "group", 99),
        (*STEP, "group", 0, "answer", 99),
    ):
        tab.page.goto(f"{viewer.url}/#/{'/'.join(map(str, parts))}")
        tab.page.locator("main [role=alert]").first.wait_for()
        assert len(tab.page.inner_text("main [role=alert]")) > 10
