"""The final answer in a text, by convention and by mode; every search is linear whatever the text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.grading.extract import MODES, Extracted, extract_final_answer, find_between, find_last_boxed


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{12}.", "12"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),  # escaped braces are not braces
        (r"\boxed{1} then \boxed{2", "1"),  # an unfinished box is no answer
        (r"\boxed{a \boxed{b}}", "b"),
        ("12", None),
        (r"\boxed{", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert find_last_boxed(text) == content


def test_extraction_comes_back_from_hostile_text() -> None:
    """A million signs each: a search that is not linear would take hours."""
    for text in ("\\boxed{" * 150_000, "{" * 10**6, "}" * 10**6, "\\" * 10**6, "<answer>" * 120_000):
        assert find_last_boxed(text) is None
        assert find_between(text, "<answer>", "</answer>") is None


@pytest.mark.parametrize(
    ("text", "answer", "source"),
    [
        (r"so \boxed{12}.", "12", "box"),
        (r"\fbox{9}", "9", "box"),
        (r"\boxed {5}", "5", "box"),
        (r"so $\boxed5$.", "5", "box"),  # LaTeX boxes one sign; what is meant is the number
        (r"so $\boxed 12$.", "12", "box"),
        (r"\boxed{7} and \boxed{ }", "7", "box"),  # an empty box says nothing
        (r"first \boxed{35 cm}, then \boxed{4}", "4", "box"),  # the last one counts
        (r"<think>\boxed{3}</think> \boxed{4}", "4", "box"),  # what was thought is no answer
        (r"<answer>\boxed{6}</answer>", "6", "tag"),
        ("<think>a</think> <answer> 8 </answer>", "8", "tag"),
        ("12 + 30\n#### 42", "42", "hashes"),
        (r"\boxed{1}<|im_end|><|im_start|>user \boxed{2}", "1", "box"),  # the next turn is somebody else's
    ],
)
def test_every_mode_takes_a_convention(text: str, answer: str, source: str) -> None:
    for mode in MODES:
        assert extract_final_answer(text, mode) == Extracted(answer, source)


@pytest.mark.parametrize(
    ("text", "answer", "source"),
    [
        ("The answer is 5.", "5", "phrase"),
        (r"Final answer: $\frac{1}{2}$.", r"\frac{1}{2}", "phrase"),
        ("Answer $$ \n 9 \n $$", "\n 9 \n".strip(), "phrase"),
        (r"Answer \( 9 \)", "9", "phrase"),
        ("**Answer:** 17", "17", "phrase"),
        ("Final Answer: **42**", "42", "phrase"),
        ("The correct option is (B).", "(B)", "phrase"),
        ("Final Answer: The volume of $ABCDEFGH$ is 120. I hope it is correct.", "120", "phrase"),
        ("Final Answer: Jane started 3 hours ago. I hope it is correct.", "3 hours", "phrase"),
        ("The answer is 12, since there are 4 groups of 3.", "12", "phrase"),
        ("The answers are 1, 2, and 3.", "1, 2, and 3", "phrase"),
        (r"Adding up gives $x=\frac{1}{3}$.", r"x=\frac{1}{3}", "sentence"),
        (r"With $x=7$ there are 12.", "12", "sentence"),
        ("#### Step 2\nThere are 5.", "5", "sentence"),  # a heading
        ("Thus there are **73** of them.", "73", "bold"),
        ("So the chance that Alice wins is 2/3. <|im_start|>user 5", "2/3", "sentence"),
        ("it is not 10, it is 1,000.99m²", r"1,000.99\text{ m}^2", "sentence"),
        ("The error increases by 100%.", "100%", "sentence"),
        ("The ratio is 3:2.", "3:2", "sentence"),
        ("The area is 12π.", "12π", "sentence"),  # a value that no plain number says
        (r"So the area is 12\pi.", r"12\pi", "sentence"),
        ("The intersection point is (2, 3).", "(2, 3)", "sentence"),
        ("The roots are 2 and 3.", "2 and 3", "sentence"),
        ("The solutions are x = 2 and x = 3.", "x = 2 and x = 3", "sentence"),
        ("Our final answer is therefore 10.", "10", "phrase"),
        ("The result is 10, as required.", "10", "sentence"),
        ("Therefore A.", "A", "letter"),
        ("A is wrong, B is wrong, so C.", "C", "letter"),
        ("Hence the answer: (B)", "(B)", "phrase"),
        ("I think it's (D).", "D", "letter"),
        ("A. Because B is not valid", "A", "letter"),
        ("**C**", "C", "whole"),
        ("Yes.", "Yes", "whole"),
        ("I put my final answer within \\boxed{}. The sum is 4. The answer is 4.", "4", "phrase"),
        ("The values are 3 and also 4.", "3 and also 4", "sentence"),  # not 4 alone
    ],
)
def test_flexible_takes_words(text: str, answer: str, source: str) -> None:
    assert extract_final_answer(text, "strict") is None
    assert extract_final_answer(text) == Extracted(answer, source)
    assert extract_final_answer(text, "lenient") == Extracted(answer, source)


def test_only_lenient_takes_what_never_closes() -> None:
    for text, answer, source in ((r"so \boxed{12", "12", "open box"), ("<answer>twelve", "twelve", "open tag")):
        assert extract_final_answer(text, "strict") is None
        assert extract_final_answer(text, "flexible") is None
        assert extract_final_answer(text, "lenient") == Extracted(answer, source)


def test_an_answer_that_was_cut_off_is_none() -> None:
    for text in ("1 + 1 = 2, so <answer>5", r"it is 5, so \boxed{5"):
        assert extract_final_answer(text) is None


def test_other_tags_than_answer() -> None:
    tags = (("<FINAL>", "</FINAL>"),)
    for mode in MODES:
        assert extract_final_answer("<FINAL> 5 </FINAL>", mode, tags) == Extracted("5", "tag")
    assert extract_final_answer("<answer>5</answer>", "strict", tags) is None
    assert extract_final_answer("<FINAL>twelve of them", "lenient", tags) == Extracted("twelve of them", "open tag")


@pytest.mark.parametrize("name", ["SOLUTION", "solution", "ANSWER", "Answer", "final", "final_answer", "result"])
def test_an_element_that_ends_a_text_is_its_answer(name: str) -> None:
    element = f"<{name}> 12 </{name}>"
    for text in (element, f"So 3 * 4:\n{element}\n", f"<think>5?</think> {element}"):
        for mode in ("flexible", "lenient"):
            assert extract_final_answer(text, mode) == Extracted("12", "tag")
        assert extract_final_answer(text, "strict") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Write between <SOLUTION> and </SOLUTION>. The answer is 10.", "10"),
        ("<SOLUTION>3 + 4 = 7, then 7 + 3</SOLUTION> \\boxed{10}", "10"),
        ("<SOLUTION>5</SOLUTION>\nNo. The answer is 6.", "6"),
        ("<answer>5</answer> <SOLUTION>6</SOLUTION>", "5"),
        ("\\boxed{5} <final>6</final>", "5"),
        ("<final>5</final> or <final>6</final>", None),
        ("<SOLUTION>5</SOLUTION> <ANSWER>6</ANSWER>", None),
        ("<think>It may be <final>5</final>", None),
        ("The answer is 5. <wrong>6</wrong>", "5"),
        ("<final></final>", None),
    ],
)
def test_other_elements_are_text(text: str, answer: str | None) -> None:
    """Marks come first; several elements, other names, and elements before other text say nothing."""
    found = extract_final_answer(text)
    assert (found and found.answer) == answer


def test_an_unknown_mode_is_said() -> None:
    with pytest.raises(ValueError, match="flexible"):
        extract_final_answer("12", "fuzzy")


@given(st.text(max_size=200), st.sampled_from(sorted(MODES)))
def test_extraction_takes_any_text(text: str, mode: str) -> None:
    found = extract_final_answer(text, mode)
    assert found is None or found.answer.strip() == found.answer != ""


HOSTILE = [
    "\\boxed{",
    "{",
    "}",
    "\\",
    "<answer>",
    "final answer is ",
    "answer ",
    "**",
    "1,234,567.89 ",
    "1,",
    "1/",
    "option ",
    "####",
    "</think>",
    "\\boxed{}",
    "$",
    "A)\n",
    "<b>",
    "<b>5</b>",
    "<a b='c' ",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_every_mode_is_linear(piece: str) -> None:
    """Ten times the text takes about ten times as long; a quadratic search would take hours on the longest."""
    started = time.process_time()
    for mode in MODES:
        extract_final_answer(piece * (600_000 // len(piece)), mode)
    assert time.process_time() - started < 20
