"""Letters behind a number: products of variables commute, and no variable is dropped as a unit."""

from __future__ import annotations

import itertools

import pytest

from qed.grading.equal import equal
from qed.grading.policy import Policy

PARSER = Policy(symbolic=False)
LETTERS = "acdghkmnprstvy"
BEFORE = ["2", "3", r"2\pi ", r"\pi ", r"\frac12 ", r"\frac{1}{2}", "-5", r"4\sqrt2 "]
PLAIN_UNITS = {"cm", "kg", "km", "rd", "th"}  # dropped behind a plain number


@pytest.mark.parametrize("before", BEFORE)
def test_two_letters_commute_and_are_not_dropped(before: str) -> None:
    for one, two in itertools.combinations(LETTERS, 2):
        product, other = before + one + two, before + two + one
        assert equal(product, other, PARSER).correct, (product, other)
        if not {one + two, two + one} & PLAIN_UNITS:
            assert not equal(before, product, PARSER).correct, product
            assert not equal(product, before, PARSER).correct, product


@pytest.mark.parametrize("power", ["", "^2"])
def test_three_letters_commute(power: str) -> None:
    for letters in itertools.islice(itertools.combinations("bghkmnrtvw", 3), 0, None, 3):
        products = ["".join(order) for order in itertools.permutations([letters[0] + power, *letters[1:]])]
        for product in products[1:]:
            assert equal(products[0], product, PARSER).correct, (products[0], product)
            assert not equal(products[0] + "w", product, PARSER).correct


@pytest.mark.parametrize("unit", ["nm", "rs", "ms", "pc", "m", "cm", "mn", "gh"])
def test_an_upright_unit_may_be_missing(unit: str) -> None:
    assert equal("7", rf"7\,\mathrm{{{unit}}}", PARSER).correct == (unit not in {"mn", "gh"})
    assert not equal("7", rf"8\,\mathrm{{{unit}}}", PARSER).correct
