"""Decimals for an exact gold: six digits that round it are right, fewer or truncated ones are wrong."""

from __future__ import annotations

import pytest

from qed.grading.equal import equal
from qed.grading.policy import Policy

PI = "3.14159265358979323846264338327950288419716939937510582097494459"


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\sqrt2", "1.41421", True),
        (r"\sqrt2", "1.4142", False),
        (r"\sqrt2", "1.41421356", True),
        (r"\sqrt2", "1.41421357", False),
        (r"\sqrt2", "1.41422", False),
        (r"-\sqrt2", "-1.41421", True),
        (r"-\sqrt2", "1.41421", False),
        (r"\sqrt{2}", "1.41421356237309504880168872420969807856967187537694807317667973799", True),
        (r"\sqrt{2}", "1.41421356237309504880168872420969807856967187537694807317667973798", False),
        (r"\pi", "3.14159", True),
        (r"\pi", "3.1416", False),
        (r"\pi", "3.14159265358979", True),
        (r"\pi", "3.141592653589", False),  # truncated: it rounds to 3.141592653590
        (r"\pi", PI.partition("375")[0][:-1] + "0", False),
        (r"\pi", PI.partition("37510")[0], True),
        ("e", "2.718281828", True),
        ("e", "2.71828", True),
        ("e", "2.7183", False),
        (r"\frac13", "0.333333", True),
        (r"\frac13", "0.33333", False),
        (r"\frac13", "0.333334", False),
        (r"\frac23", "0.666667", True),
        (r"\frac23", "0.666666", False),
        (r"\frac{22}{7}", "3.142857", True),
        (r"100\pi", "314.159265", True),
        (r"100\pi", "314.159", True),
        (r"100\pi", "314.16", False),
        (r"100000\pi", "314159", False),  # an integer is no decimal
        (r"\frac{1}{64}", "0.015625", True),  # exact
        (r"\frac{1}{128}", "0.007813", False),  # an end in decimals: only the exact value
        (r"\frac{1}{1024}", "0.000976563", False),
        ("123456789", "123456789.4", False),
        ("0.333333", r"\frac13", False),  # the gold is exact
        ("0.333333", r"x=\frac13", False),  # and stays the gold beside a name, a sum of unknowns or a bare list
        (r"\frac13", "x=0.333333", True),
        ("x=0.333333", r"\frac13", False),
        (r"\frac13", "m+n=0.333333", True),
        ("0.333333", r"m+n=\frac13", False),
        (r"(\frac13,2)", "0.333333, 2", True),
        ("(0.333333,2)", r"\frac13, 2", False),
        (r"(x,y)=(\frac13,2)", "y=2, x=0.333333", True),
        ("(x,y)=(0.333333,2)", r"y=2, x=\frac13", False),
        ("1.41421356", r"\sqrt2", False),
        ("3.14159", r"\pi", False),
        (r"\ln 2", "0.693147", True),
        (r"\ln 2", "0.693148", False),
        (r"\ln 2", ".693147", True),
        (r"\frac{\sqrt3}{2}", "0.8660254", True),
        (r"\frac{\sqrt3}{2}", "0.866025", True),
        (r"\frac{\sqrt3}{2}", "0.8660", False),
        (r"\sqrt2\text{ cm}", "1.41421356 cm", True),
        (r"\sqrt2\text{ cm}", "1.41421356", True),
        (r"\sqrt2\text{ cm}", "1.41421356 m", False),
        (r"\sqrt2", r"1.41421356\text{ cm}", True),
        (r"(1,\sqrt2)", "(1, 1.41421356)", True),
        (r"(1,\sqrt2)", "(1, 1.4142)", False),
        (r"x=\sqrt2", "x=1.41421356", True),
        (r"x=\sqrt2", "y=1.41421356", False),
        (r"x", "1.41421356", False),
        (r"\frac{1}{0}", "1.414213", False),
        (r"\sqrt{-2}", "1.41421356", False),
    ],
)
def test_six_digits_that_round_the_gold(gold: str, answer: str, right: bool) -> None:
    assert equal(gold, answer, Policy(symbolic=False)).correct is right
    if right and "." in answer and not equal(gold, answer, Policy(symbolic=False, rounded_answer=False)).correct:
        assert not equal(answer, gold, Policy(symbolic=False)).correct  # the gold's decimals are exact
