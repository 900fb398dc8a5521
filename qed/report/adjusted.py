"""Paired tests that are reported together, with p-values adjusted for their number (Holm 1979)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from qed.evaluation.intervals import adjust_holm
from qed.evaluation.paired import PairedTest
from qed.report.numbers import format_p_value, format_point_bounds, format_points

SIGNIFICANT = 0.05
Name = TypeVar("Name")


@dataclass(frozen=True)
class AdjustedTest:
    """A paired test, with its p-value adjusted for all `count` tests that are reported together."""

    test: PairedTest
    p_holm: float | None
    count: int

    @property
    def is_established(self) -> bool:
        """Return whether the difference is more than chance explains, given the number of tests."""
        return self.p_holm is not None and self.p_holm < SIGNIFICANT

    def format_p_values(self) -> str:
        """Format the p-value, and the adjusted one if there are several tests; without a p-value return the note."""
        if self.test.p_value is None or self.p_holm is None:
            return self.test.note
        raw = format_p_value(self.test.p_value)
        return f"{raw}, by Holm over {self.count} tests {format_p_value(self.p_holm)}" if self.count > 1 else raw

    def describe(self) -> str:
        """Return the difference with its interval, and whether it is more than chance explains."""
        test = self.test
        bounds = format_point_bounds(test.ci_lo, test.ci_hi)
        difference = f"{format_points(test.difference)} points {bounds}"
        if test.p_value is None:
            return f"{difference}; {test.note}"
        verdict = "more than chance explains" if self.is_established else "no more than chance may explain"
        return f"{difference}, {verdict} ({test.test}, {self.format_p_values()})"


def adjust_tests(tests: Mapping[Name, PairedTest]) -> dict[Name, AdjustedTest]:
    """Adjust the p-values of tests that are reported together."""
    adjusted = adjust_holm([test.p_value for test in tests.values()])
    return {
        name: AdjustedTest(test, p_holm, len(tests))
        for (name, test), p_holm in zip(tests.items(), adjusted, strict=True)
    }
