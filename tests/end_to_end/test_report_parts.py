"""The arithmetic and the axes of the report, against closed forms."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from qed.evaluation.intervals import compute_mcnemar_p
from qed.report.numbers import MAX_POINTS, compute_running_mean, compute_ticks, format_plain, thin_cloud, thin_line
from qed.report.panels import build_spans
from qed.report.scales import Span, StepAxis, ValueAxis
from qed.report.svg import Series


@pytest.mark.parametrize(
    ("gained", "lost", "chance"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 2 / 2**5),
        (0, 10, 2 / 2**10),
        (3, 3, 1.0),
        (10, 2, 2 * (1 + 12 + 66) / 2**12),
        (2, 10, 2 * (1 + 12 + 66) / 2**12),
        (5, 4, 1.0),
    ],
)
def test_mcnemar_is_exact(gained: int, lost: int, chance: float) -> None:
    assert compute_mcnemar_p(gained, lost) == pytest.approx(chance, rel=1e-12)


def test_mcnemar_bears_large_counts() -> None:
    assert 0 <= compute_mcnemar_p(5000, 1000) < 1e-300
    assert compute_mcnemar_p(5000, 5000) == 1.0
    # The normal approximation with continuity correction is near where counts are large.
    assert compute_mcnemar_p(5100, 5000) == pytest.approx(math.erfc(99 / math.sqrt(2 * 10100)), rel=1e-3)


def test_thinning_keeps_what_stands_out() -> None:
    points = [(float(step), 5.0 if step == 777 else float(step % 3)) for step in range(5000)]
    for some in (thin_line(points), thin_cloud(points)):
        assert len(some) <= MAX_POINTS
        assert (777.0, 5.0) in some
        assert some == sorted(some)
    assert thin_line(points[:10]) == thin_cloud(points[:10]) == points[:10]


def test_the_running_mean_is_a_mean_of_neighbours() -> None:
    assert compute_running_mean([1.0, 2.0, 6.0, 3.0], 3) == pytest.approx([1.5, 3.0, 11 / 3, 4.5])
    assert compute_running_mean([4.0], 9) == [4.0]
    assert compute_running_mean([], 3) == []


# The last two differ by rounding alone, as a loss does that nothing changes.
VALUES = [[], [0.0], [3.0, 3.0], [-2.0], [1e-9, 2e-9], [0.1, 1e3], [-1.0, 1.0], [0.999], [1.0, 1 + 3e-16], [0, 5e-324]]


@pytest.mark.parametrize(("value", "shown"), [(999.4, "999"), (999.7, "1,000"), (-999.7, "\u22121,000"), (0.0, "0")])
def test_a_number_has_three_digits(value: float, shown: str) -> None:
    assert format_plain(value) == shown


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("kind", [{}, {"share": True}, {"log": True}, {"zero": False}])
def test_an_axis_holds_its_values(values: list[float], kind: dict[str, bool]) -> None:
    axis = ValueAxis(values, **kind)
    assert axis.low < axis.high or len(values) == 0
    assert all(0 <= axis.compute_height(value) <= 1 for value in values)
    assert 1 <= len(axis.choose_ticks()) <= 9
    assert all(axis.format_value(tick) for tick in axis.choose_ticks())


def test_each_phase_has_its_own_scale() -> None:
    axis = StepAxis([Span("SFT", 0, 600, 1.0), Span("GRPO", 600, 720, 1.0)], 0, 100)
    assert [axis.locate(step) for step in (-5, 0, 300, 600, 660, 720, 999)] == [0, 0, 25, 50, 75, 100, 100]
    assert StepAxis([Span("", 3, 3)], 0, 100).locate(3) == 50
    short, long = Span("SFT", 0, 2, 2.0), Span("GRPO", 2, 1_000, 998.0)
    assert StepAxis([short, long], 0, 100).locate(2) > 10, "a short phase next to a long one is readable"
    assert compute_ticks(0, 0, 4) == [0]


def run(*phases: tuple[str, int, int]) -> Any:
    """A record of which only the phases are read: name, begin and last step of each."""
    return SimpleNamespace(
        phases=[
            SimpleNamespace(name=name, label=name, begin=begin, last=last, compute_total=lambda key: 1.0)
            for name, begin, last in phases
        ]
    )


def test_arms_share_an_axis_and_phases_follow_each_other() -> None:
    """Runs of different algorithms from step 0 are arms on one axis; SFT and then RL are two stretches of it."""
    line = [Series("", [(0.0, 0.0), (100.0, 1.0), (300.0, 1.0)])]
    arms = [run(("grpo", 0, 300)), run(("luffy", 0, 300)), run(("sft", 0, 100))]
    assert build_spans(arms, line) == [Span("", 0, 300)]
    roads = [run(("sft", 0, 100), ("grpo", 100, 300)), run(("sft", 0, 100))]
    assert [(span.label, span.first, span.last) for span in build_spans(roads, line)] == [
        ("sft", 0, 100),
        ("grpo", 100, 300),
    ]
