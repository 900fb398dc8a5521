"""Markup tags are no part of an answer, and comparisons are no markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qed
from qed.data.prompts import reasoning_answer
from qed.data.prompts.working_out import WorkingOut
from qed.evaluation.per_sample_metrics import compute_sample_metrics
from qed.grading.equal import equal
from qed.grading.extract import MODES, Extracted, extract_final_answer, find_final_answer
from qed.grading.extraction.marks import list_answer_tags
from qed.grading.extraction.markup import remove_markup
from qed.rewards.base import load_reward
from qed.rewards.grader import list_tags, make_grader
from qed.types import Problem, Rollout

NAMES = ("final", "ANSWER", "Answer", "output", "b", "strong", "final-answer", "Final_Answer", "li", "ans")
TEXTS = (
    "<{0}>{1}</{0}>",
    "Answer: <{0}>{1}</{0}>",
    "The answer is <{0}>{1}</{0}>.",
    "<think>So 71.</think> <{0}>{1}</{0}>",
    "3+4 = 7.\n<{0}>\n{1}\n</{0}>",
    "<{0}>The answer is {1}.</{0}>",
    "<answer><{0}>{1}</{0}></answer>",
    "\\boxed{{<{0}>{1}</{0}>}}",
    "#### <{0}>{1}</{0}>",
    "<b><{0}>{1}</{0}></b>",
    '<{0} class="a b" id=x>{1}</{0}>',
)
VALUES = ("72", "-5", "3/4", "x < 5", "0<x<10", "<2", r"\frac{1}{2}", "(3, 4)", "72%", "5 cm")
COMPARISONS = ("a<b>c", "x<y>z", "x<5", "0<x<10", "3 < x", "<2", "a <b> c", "p<q>r", "1<b>2", "a<b>c and x<i>z")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", TEXTS)
def test_a_tag_is_no_part_of_the_answer(text: str, name: str) -> None:
    for value in VALUES:
        found = extract_final_answer(text.format(name, value))
        assert found is not None
        assert equal(value, found.answer).correct, found


@pytest.mark.parametrize("text", COMPARISONS)
def test_a_comparison_is_no_tag(text: str) -> None:
    assert remove_markup(text) == text
    assert qed.grade(text, f"The answer is {text}").correct
    assert qed.grade(text, f"<answer>{text}</answer>").correct


@given(st.text("ab<>/x 5=-", max_size=40))
def test_only_what_closes_is_a_tag(text: str) -> None:
    assert "</" in text or "<b" in text or remove_markup(text) == text
    assert remove_markup(text.replace("</", "< /")) == text.replace("</", "< /")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("x = -<b>5</b>", "x = -5"),
        ("<b>Answer:</b>72", "Answer:72"),
        ("is<b>72</b>", "is 72"),
        ("<b>72</b>%", "72%"),
        ("<b>1</b>/<b>2</b>", "1/2"),
        ("<p>It is 7.</p><p>So 8.</p>", "It is 7. So 8."),
        ("<li>5</li><li>-7</li>", "5 • -7"),
        ("<td>$5$</td> <td>7</td>", "$5$ • 7"),
        ("3<b>200</b>", "3 • 200"),
        ("3<br>200", "3 • 200"),
        ("<b>5</b> - 7", "5 - 7"),
        ("12 <del>10</del>.", "12 ."),
        ("a<b>c so <b>5</b>", "a<b>c so 5"),
        ("<scratchpad>10</scratchpad>", "<scratchpad>10</scratchpad>"),
        ("x<sup>2</sup>", "x<sup>2</sup>"),
        ("<b>72", "<b>72"),
        ("<b>72</i>", "<b>72</i>"),
    ],
)
def test_what_tags_separate_stays_apart(text: str, plain: str) -> None:
    assert remove_markup(text) == plain


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("10", "The answer is not <final>10</final>."),
        ("10", "The answer is not<br>10"),
        ("10", "<b>10</b> is wrong"),
        ("10", "The answer is <b>10</b>. Wait, no: it is <b>12</b>."),
        ("10", "Is it <b>10</b>?"),
        ("10", "maybe <final>10</final>"),
        ("10", "<b>10</b> or <b>12</b>"),
        ("12", "<b>10</b> or <b>12</b>"),
        ("5", "<final>5</final><final>7</final>"),
        ("7", "<final>5</final><final>7</final>"),
        ("7", "<ANSWER>5</ANSWER> <ANSWER>7</ANSWER>"),
        ("57", "<li>5</li><li>7</li>"),
        ("-2", "<li>5</li> <li>-7</li>"),
        ("3200", "we need 3 <final>200</final>"),
        ("5", "Steps\n-<final>5</final>"),
        ("10", "<THINK>10</THINK>"),
        ("10", "<scratchpad>10</scratchpad>"),
        ("10", "<scratchpad>The answer is 10.</scratchpad> <b>12</b>"),
        ("10", "12 <strike>10</strike>"),
        ("10", "<wrong>10</wrong>"),
        ("10", "<guess>10</guess> 12"),
        ("2", "x<sup>2</sup>"),
        ("5", "<SOLUTION>5</SOLUTION> <SOLUTION>7</SOLUTION>"),
        ("5", "<answer>5</answer> no, <SOLUTION>7</SOLUTION>"),
        ("5", "<SOLUTION>5</SOLUTION> no, <answer>7</answer>"),
        ("5", "<SOLUTION>5</SOLUTION> no, <answer>7"),
        ("10", "<start_working_out><SOLUTION>10</SOLUTION><end_working_out>"),
        ("9", "<SOLUTION>8</SOLUTION><|im_end|><SOLUTION>9</SOLUTION>"),
    ],
)
def test_markup_hides_no_doubt(gold: str, text: str) -> None:
    for mode in MODES:
        found = find_final_answer(text, mode)
        assert not (isinstance(found, Extracted) and equal(gold, found.answer).correct), (mode, found)


def test_the_tags_of_a_shelf_prompt_enclose_an_answer() -> None:
    for text in ("<SOLUTION>10</SOLUTION>", "<start_working_out>7<end_working_out><SOLUTION>So it is 10.</SOLUTION>"):
        assert [extract_final_answer(text, mode) for mode in MODES] == [Extracted("10", "tag")] * 3
    cut = "<start_working_out>3+7<end_working_out><SOLUTION>10"
    assert extract_final_answer(cut) is None
    assert extract_final_answer(cut, "lenient") == Extracted("10", "open tag")
    assert qed.grade("10", "<SOLUTION>10</SOLUTION>").extracted == "10"


OPTIONS = ("working_out.solution_start=<end>", "working_out.solution_end=</end>")
WORKING = ("<work>", "</work>", "<end>", "</end>")


@pytest.mark.parametrize(
    ("reward", "options", "tags", "text"),
    [
        ("working_out", (), WorkingOut().TAGS, "<start_working_out>8+4=12<SOLUTION>{}</SOLUTION>"),
        ("working_out", OPTIONS, WORKING, "<start_working_out>8+4=12<end>{}</end>"),
        ("gsm8k_xml", (), reasoning_answer.TAGS, "<reasoning>\n8+4=12\n<answer>{}</answer>"),
    ],
)
def test_an_answer_without_its_format_is_classed_by_its_own_tags(
    reward: str, options: tuple[str, ...], tags: tuple[str, ...], text: str
) -> None:
    for answer, kind in (("12", "fmt0_ans1"), ("13", "fmt0_ans0")):
        rollout = Rollout(Problem("p", "8+4", "12"), (), (), (), text.format(answer), "stop")
        graded = replace(rollout, grade=load_reward((reward,), options).grade([rollout])[0])
        for own in (tags, list_tags(make_grader((reward,), options))):
            columns = compute_sample_metrics(graded, own)
            assert columns["class"] == kind
            assert columns["flexible"] is (answer == "12")
    whole = f"{tags[1]}{tags[2]}12{tags[3]}"
    assert find_final_answer(whole, "strict", list_answer_tags(tags)) == Extracted("12", "tag")


NUMBER = re.compile(r"(?<![\w.,{\\$^/])-?\d+(?:[.,]\d+)*(?![\w.,}/^]\d?)")
RESPONSES = [json.loads(line) for line in (Path(__file__).parent / "responses.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["b", "final"])
def test_a_tag_around_a_number_makes_no_response_right(name: str) -> None:
    """What is wrong, denied or left open without the tag is so with it."""
    wrong = [row for row in RESPONSES if not row["right"]]
    for row in wrong:
        text = row["response"]
        for start, end in [match.span() for match in NUMBER.finditer(text)][-2:]:
            tagged = f"{text[:start]}<{name}>{text[start:end]}</{name}>{text[end:]}"
            found = find_final_answer(tagged)
            assert not (isinstance(found, Extracted) and equal(row["gold"], found.answer).correct), (tagged, found)
    assert len(wrong) > 300
