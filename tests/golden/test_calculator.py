"""The calculator: exact values, and a word for everything that it cannot compute."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.environments.base import State
from qed.environments.calculator import LONGEST, calculate, environment
from qed.types import Problem

VALUES = {
    "12 * 34": "408",
    "7/2": "3.5",
    "1/3": "0.333333333333",
    "-3.25*2": "-6.5",
    "0.1+0.2": "0.3",
    "1/7*7": "1",
    "(-2)**3": "-8",
    "(-1)**10**9": "1",
    "10**-3": "0.001",
    "1,234 + 1": "1235",
    "3×4÷6−1": "1",
    "2^10": "1024",
    "7//2": "3",
    "5%3": "2",
    "0**5": "0",
    "2**900": str(2**900),
}
REFUSED = {
    "": "not an expression",
    "1+": "not an expression",
    "(" * 150 + ")" * 150: "characters",
    "9" * 300: "characters",
    "1/0": "division by zero",
    "0**-1": "division by zero",
    "9**9**9**9": "too long",
    "2**1000": "too long",
    "(1/3)**2000": "too long",
    "2**0.5": "whole number",
    "1e999999999": "only numbers",
    "0x10": "only numbers",
    "1j*2": "only numbers",
    "True+1": "only numbers",
    "'a'*9": "only numbers",
    "open('x')": "only numbers",
    "().real": "only numbers",
    "1 if 1 else 2": "only numbers",
    "1<<9999": "only numbers",
    "1;2": "only numbers",
    "'\\d'": "only numbers",
    "1if 2else 3": "only numbers",
    "1(2)": "only numbers",
    "()": "only numbers",
    "1..real": "only numbers",
    "１+１": "only numbers",
    "1\n+1": "only numbers",
    "[1]*9": "only numbers",
    "\ud800": "only numbers",
    "1\0": "only numbers",
}


@pytest.mark.parametrize("expression", VALUES)
def test_values_are_exact(expression: str) -> None:
    assert calculate(expression) == VALUES[expression]


@pytest.mark.parametrize("expression", REFUSED)
def test_what_cannot_be_computed_is_told(expression: str) -> None:
    assert calculate(expression).startswith("error: ")
    assert REFUSED[expression] in calculate(expression)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=LONGEST + 10))
def test_every_text_has_an_answer(text: str) -> None:
    assert calculate(text)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 10**6)), min_size=1, max_size=8))
def test_whole_numbers_are_those_of_python(parts: list[tuple[str, int]]) -> None:
    expression = "".join(f"{sign}{number}" for sign, number in parts).lstrip("*")
    assert Fraction(calculate(expression)) == eval(expression)


def test_a_turn_without_a_call_ends_the_answer() -> None:
    problem = Problem("p", "?", "1")
    reply = environment.step(State(problem, ("So <calculator>2*3</calculator>",)))
    assert reply is not None
    assert (reply.text, reply.message) == ("\n<result>\n6\n</result>\n", False)
    assert environment.step(State(problem, ("The answer is 6.",))) is None
    assert environment.step(State(problem, ("<calculator>2*3</calculator> and 7",))) is None
    assert environment.step(State(problem, ("2*3</calculator>",))) is None
