"""Formulas in a report: drawn where they are formulas, text where they are not, and never anything that acts."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.report.formulas import ALLOWED_ELEMENTS, convert_formula, render_formulas

SEEN = ALLOWED_ELEMENTS | {"span"}
PIECES = [
    "$",
    "$$",
    "\\(",
    "\\)",
    "\\[",
    "\\]",
    "\\boxed{",
    "\\frac",
    "{",
    "}",
    "x",
    "^2",
    "<b>",
    "&",
    "\\text{",
    " ",
    "\n",
]


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("so $\\frac{1}{2}$.", ["<mfrac>"]),
        ("\\(\\sqrt{2}\\)", ["<msqrt>"]),
        ("\\[x^2\\]", ['display="block"', "<msup>"]),
        ("it is \\boxed{\\frac12}", ['notation="box"', "<mfrac>"]),
        ("$\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}$", ["<mtable>"]),
    ],
)
def test_formulas_are_drawn(text: str, drawn: list[str]) -> None:
    for word in drawn:
        assert word in render_formulas(text)


@pytest.mark.parametrize(
    "text", ["$5 and $6", "he paid $5", "costs 3$ or 4$", "\\boxed{", "$\\frac{$", "$x", "a $ b $ c"]
)
def test_what_is_no_formula_stays_text(text: str) -> None:
    assert render_formulas(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "$\\href{javascript:alert(1)}{x}$",
        "$\\text{<img src=x onerror=alert(1)>}$",
        "$<script>alert(1)</script>$",
        "$\\style{color:red}{x}$",
        "$\\class{a}{x}$",
    ],
)
def test_nothing_acts(text: str) -> None:
    markup = render_formulas(text)
    assert set(re.findall(r"<([a-z]+)", markup)) <= SEEN
    bare = re.sub(r'"[^"]*"', "", markup.replace(' class="formula"', ""))
    assert not re.search(r"<[^>]*(?:href|style|class|onerror|src)=", bare)


@pytest.mark.parametrize(
    "text",
    [
        "$\\foo{x}$",  # an unknown command has not been understood
        "$\\phantom{x}$",  # what is not seen is not what was written
        "$\\text{a<mi>b</mi>c}$",
        "$\\newcommand{\\a}{xx}\\newcommand{\\b}{\\a\\a}\\b$",
        "$" + "{" * 200 + "}" * 200 + "$",
        "$" + "\\sqrt{" * 60 + "}" * 60 + "$",
        "$" + "x" * 500 + "$",
        "$}$",
        "$x^$",
        "$\\left(x$",
    ],
)
def test_what_is_not_understood_stays_text(text: str) -> None:
    assert render_formulas(text) == html.escape(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x\\quad y", 'width="1em"'),
        ("\\hspace{1000em}x", "<mspace></mspace>"),
        ("\\hspace{-3em}x", "<mspace></mspace>"),
    ],
)
def test_a_space_is_as_wide_as_a_formula_may_be(text: str, kept: str) -> None:
    assert kept in render_formulas(f"${text}$")


def test_what_was_written_can_be_read() -> None:
    assert 'alttext="\\frac{1}{2}&lt;&quot;"' in render_formulas('$\\frac{1}{2}<"$')


@pytest.mark.parametrize(
    ("answer", "drawn"), [("\\frac{1}{2}", True), ("12", False), ("so $x^2$", True), ("x\\", False), ("a_b", False)]
)
def test_an_answer_may_be_all_one_formula(answer: str, drawn: bool) -> None:
    assert ("<math" in convert_formula(answer)) == drawn


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_text_comes_back(text: str) -> None:
    markup = render_formulas(text)
    assert set(re.findall(r"<([a-z]+)", markup)) <= SEEN


def test_long_texts_come_back() -> None:
    for piece in ("$", "\\boxed{", "$x$", "\\(", "$$x$$ "):
        assert render_formulas(piece * 20_000)
