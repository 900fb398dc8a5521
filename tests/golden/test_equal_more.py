"""More pairs of answers by kind, and the laws of equality on text made of pieces of mathematics."""

from __future__ import annotations

import time

import pairs_near_forms
import pairs_of_constants
import pairs_of_forms
import pairs_of_letters
import pairs_of_numbers
import pairs_of_quantities
import pairs_of_relations
import pairs_of_statements
import pairs_of_structures
import pairs_of_traps
import pairs_of_wordings
import pairs_of_words_around
import pytest
from answer_pairs import pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.grading import numeric, strings
from qed.grading.equal import Verdict, equal
from qed.grading.policy import Policy
from qed.grading.reading import read_answer
from qed.grading.strings import grade_answer

TABLES = (
    pairs_of_constants,
    pairs_of_letters,
    pairs_of_numbers,
    pairs_of_quantities,
    pairs_of_statements,
    pairs_of_structures,
)
SAME = "".join(table.SAME for table in (*TABLES, pairs_of_forms, pairs_of_relations, pairs_of_wordings))
WORDS = (pairs_of_relations, pairs_of_wordings, pairs_of_words_around)
DIFFERENT = "".join(table.DIFFERENT for table in (*TABLES, *WORDS, pairs_near_forms, pairs_of_traps))
ONE_WAY = "".join(table.ONE_WAY for table in (pairs_of_forms, pairs_of_statements, *WORDS))


@pytest.mark.parametrize(("gold", "answer"), list(pairs(SAME)))
def test_the_same(gold: str, answer: str) -> None:
    assert equal(gold, answer).correct
    assert equal(answer, gold).correct


@pytest.mark.parametrize(("gold", "answer"), list(pairs(ONE_WAY)))
def test_the_same_as_its_gold(gold: str, answer: str) -> None:
    assert equal(gold, answer).correct


def test_an_identity_as_the_gold_is_not_one_of_its_sides() -> None:
    assert not equal("x^2-1=(x-1)(x+1)", "x^2-1").correct


@pytest.mark.parametrize(("gold", "answer"), list(pairs(DIFFERENT)))
def test_different(gold: str, answer: str) -> None:
    assert not equal(gold, answer).correct
    assert not equal(answer, gold).correct


@pytest.mark.parametrize("other", [None, 5, 5.0, b"5", ["5"], float("nan")])
def test_what_is_no_text_is_no_answer(other: object) -> None:
    for verdict in (equal(other, "5"), equal("5", other), equal(other, other)):  # type: ignore[arg-type]
        assert not verdict.correct
        assert "not a string" in verdict.reason


@pytest.mark.parametrize(
    ("gold", "answer", "tier"),
    [
        ("2516_8", "2516_2", "typed"),  # there is no such number, which is a decision
        (r"\prod_{i=1}^{n} i", "n!", "unknown"),  # left to a symbolic grader
        ("(2n-1)!!", r"\frac{(2n)!}{2^n n!}", "unknown"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", "typed"),
    ],
)
def test_the_tier_that_decided(gold: str, answer: str, tier: str) -> None:
    assert equal(gold, answer, Policy(symbolic=False)).tier == tier


@pytest.mark.parametrize(
    ("policy", "gold", "answer"),
    [
        (Policy(interval_as_inequality=False), "(1,5)", "|x-3|<2"),
        (Policy(number_words=False), "25", "twenty-five"),
        (Policy(half_day_optional=False), "3:30 p.m.", "15:30"),
    ],
)
def test_a_switch_holds_for_every_reading(policy: Policy, gold: str, answer: str) -> None:
    assert equal(gold, answer)
    assert not equal(gold, answer, policy)


PIECES = st.sampled_from(
    [
        *"0123456789abijnxyzAUT+-*/^_=<>()[]{}|,;:!%$&'\".~ ",
        *("\\frac", "\\sqrt", "\\pm", "\\cup", "\\setminus", "\\text{", "\\mathrm{", "\\{", "\\}", "\\%", "\\pi"),
        *("\\infty", "\\circ", "\\Omega", "\\mu", "\\det", "\\pmod", "\\approx", "\\in", "\\neq", "\\mathbb{R}"),
        *("\\begin{pmatrix}", "\\end{pmatrix}", "\\begin{cases}", "\\end{cases}", "\\begin{vmatrix}", "\\end{vmatrix}"),
        *("\\\\", " and ", " or ", " if ", "mod ", "base ", "...", "\\overline{3}", "^{-1}", "^T", "!!", "US$", "€"),
        *(" two", " hundred", "-five", " thirds", " dollars", " apples", " of ", "half", " p.m.", "\ud800", "\0", "½"),
    ]
)
GOLDS = st.sampled_from([gold for gold, _ in pairs(SAME)])


@settings(max_examples=500)
@given(st.lists(PIECES, max_size=30).map("".join), st.lists(PIECES, max_size=30).map("".join) | GOLDS)
def test_pieces_of_mathematics_never_raise(one: str, other: str) -> None:
    verdict = equal(one, other)
    assert verdict == equal(one, other)
    assert verdict.correct == equal(other, one).correct
    assert equal(one, one).correct == bool(one.strip())


@given(st.text(st.characters(exclude_categories=()), max_size=60), st.text(st.characters(), max_size=60) | GOLDS)
def test_any_text_at_all_never_raises(one: str, other: str) -> None:
    assert equal(one, other).correct == equal(other, one).correct
    assert equal(one, one).correct == bool(one.strip())


@given(st.integers(1, 999_999))
def test_a_number_is_its_words(value: int) -> None:
    assert equal(str(value), words(value))
    assert equal(str(value), words(value).replace("-", " "))
    assert not equal(str(value + 1), words(value))


ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
ONES += " eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def words(value: int) -> str:
    """A number below a million as it is spoken."""
    if value < 20:
        return ONES.split()[value]
    if value < 100:
        tens, ones = divmod(value, 10)
        return TENS.split()[tens - 2] + (f"-{ONES.split()[ones]}" if ones else "")
    unit, name = (1_000, "thousand") if value >= 1_000 else (100, "hundred")
    above, below = divmod(value, unit)
    return f"{words(above)} {name}" + (f" {words(below)}" if below else "")


@given(st.integers(-40, 40), st.integers(1, 40), st.booleans())
def test_an_inequality_is_the_interval_that_solves_it(middle: int, reach: int, closed: bool) -> None:
    sign, brackets = ("\\le", "[]") if closed else ("<", "()")
    for text in (f"|x-({middle})| {sign} {reach}", f"(x-({middle}))^2 {sign} {reach}^2"):
        assert equal(text, f"{brackets[0]}{middle - reach},{middle + reach}{brackets[1]}")
        assert not equal(text, f"{brackets[0]}{middle - reach},{middle + reach + 1}{brackets[1]}")
        assert not equal(text, f"({middle - reach},{middle + reach}]")


@given(st.lists(st.integers(-9, 9), min_size=8, max_size=8))
def test_products_and_determinants_of_matrices(cells: list[int]) -> None:
    a, b, c, d, e, f, g, h = cells
    left, right = (
        f"\\begin{{pmatrix}}{a}&{b}\\\\{c}&{d}\\end{{pmatrix}}",
        f"\\begin{{pmatrix}}{e}&{f}\\\\{g}&{h}\\end{{pmatrix}}",
    )
    product = f"{a * e + b * g}&{a * f + b * h}\\\\{c * e + d * g}&{c * f + d * h}"
    assert equal(f"\\begin{{pmatrix}}{product}\\end{{pmatrix}}", left + right)
    assert equal(f"{a * d - b * c}", left.replace("pmatrix", "vmatrix"))
    assert not equal(f"{a * d - b * c + 1}", f"\\det{left}")


def test_many_families_cost_little() -> None:
    values = ", ".join(f"k+1/{number}" for number in range(7, 100))
    started = time.process_time()
    verdict = equal(r"60k, k\in\mathbb{Z}", rf"{values}, k\in\mathbb{{Z}}")
    assert verdict.tier == "bound"
    assert time.process_time() - started < 2


def test_families_with_many_values_in_a_period_are_compared_whole() -> None:
    dense = r"k+\frac17, k+\frac15, k+\frac13, k\in\mathbb{Z}"
    assert equal(f"60k+50.25, {dense}", f"60k+110.25, {dense}").correct
    assert not equal(f"60k+50.25, {dense}", f"60k+55.75, {dense}").correct


def test_bars_around_the_empty_set_close() -> None:
    assert read_answer(r"|\{\}|").values


def test_decimals_of_any_length_share_few_contexts() -> None:
    for places in range(21, 121):
        equal(r"\sqrt{2}", "1." + "4" * places)
    assert len(vars(numeric._contexts)) < 20


def test_golds_after_a_right_one_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[str]()

    def note(gold: str, answer: str, policy: Policy) -> Verdict:
        compared.append(gold)
        return equal(gold, answer, policy)

    monkeypatch.setattr(strings, "equal", note)
    assert grade_answer(["5", "6", "7"], "6")
    assert compared == ["5", "6"]
    assert not grade_answer(["5", "7"], "6")
    assert not grade_answer([], "6")
