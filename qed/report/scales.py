"""Axes of a chart: map steps and values to positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qed.report.numbers import MINUS, SPACE, compute_log_ticks, compute_ticks, format_plain

LABEL_WIDTH = 46.0  # a tick label with its margins
MIN_SHARE = 0.3  # minimum share of the width for each of up to three phases
MIN_LOG_RATIO = 15.0
MAX_TICKS = 6
ROUNDING, TINY = 1e-9, 1e-300  # smaller relative and absolute differences are rounding errors


@dataclass(frozen=True)
class Span:
    """Labelled range of steps; `weight` is its relative width."""

    label: str
    first: float
    last: float
    weight: float = 1.0


class StepAxis:
    """Horizontal axis with a separate scale per phase, so that a short phase is readable next to a long one."""

    def __init__(self, spans: Sequence[Span], left: float, width: float) -> None:
        total = sum(span.weight for span in spans) or 1.0
        # Shares below the minimum are raised to it; then all are renormalized.
        shares = [max(span.weight / total, MIN_SHARE if len(spans) <= 3 else 0.1) for span in spans]
        edges = [left]
        for share in shares:
            edges.append(edges[-1] + width * share / sum(shares))
        self.spans = list(spans)
        self.edges = edges

    def locate(self, step: float) -> float:
        """Return the x position of a step; steps outside the axis are clamped to its ends."""
        index = next((i for i, span in enumerate(self.spans) if step <= span.last), len(self.spans) - 1)
        span, left, right = self.spans[index], self.edges[index], self.edges[index + 1]
        if span.last <= span.first:
            return (left + right) / 2
        share = (step - span.first) / (span.last - span.first)
        return left + (right - left) * min(1.0, max(0.0, share))

    def choose_ticks(self) -> list[float]:
        """Choose the steps to label, far enough apart for their labels."""
        # The ends of phases matter most, so they are placed first, and other ticks are dropped if too close to them.
        candidates = [end for span in self.spans for end in (span.first, span.last)]
        for span, left, right in zip(self.spans, self.edges, self.edges[1:], strict=False):
            count = min(int((right - left) / LABEL_WIDTH), MAX_TICKS // len(self.spans))
            candidates += [tick for tick in compute_ticks(span.first, span.last, max(1, count)) if tick % 1 == 0]
        ticks: list[float] = []
        for tick in candidates:
            if all(abs(self.locate(tick) - self.locate(other)) >= LABEL_WIDTH - 8 for other in ticks):
                ticks.append(tick)
        return sorted(ticks)


class ValueAxis:
    """Vertical axis: linear including zero, or logarithmic if requested and the values span a large enough range."""

    def __init__(self, values: Sequence[float], share: bool = False, log: bool = False, zero: bool = True) -> None:
        low, high = min(values, default=0.0), max(values, default=1.0)
        self.share, self.step = share, 0.0
        self.log = log and low > 0 and high / low > MIN_LOG_RATIO
        if not self.log:
            low, high = (min(0.0, low), max(0.0, high)) if zero or share else (low, high)
            high = max(high, 0.05) if share else high
            size = max(abs(low), abs(high))
            if high - low <= max(ROUNDING * size, TINY):
                # A constant, even up to rounding, still needs a range.
                size = size if size > TINY else 1.0
                low, high = low - size / 2, high + size / 2
            low, high = self._round_range(low, high)
        self.low, self.high = low, high

    def _round_range(self, low: float, high: float) -> tuple[float, float]:
        """Widen the range to whole ticks, and set `step`, the distance between ticks."""
        if self.share and low >= 0 and 0.5 < high <= 1:
            self.step = 0.25
            return 0.0, 1.0
        ticks = compute_ticks(low, high, 4)
        self.step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
        first, last = math.floor(low / self.step + 1e-9), math.ceil(high / self.step - 1e-9)
        return first * self.step, last * self.step

    def compute_height(self, value: float) -> float:
        """Return the relative height of a value: 0 at the lower edge, 1 at the upper; clamped on a linear axis."""
        if self.log:
            return (math.log(max(value, self.low)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (min(self.high, max(self.low, value)) - self.low) / (self.high - self.low)

    def choose_ticks(self) -> list[float]:
        """Choose the values to label."""
        if self.log:
            return compute_log_ticks(self.low, self.high)
        return [self.low + index * self.step for index in range(round((self.high - self.low) / self.step) + 1)]

    def format_value(self, value: float) -> str:
        """Format a value for a tick or a tooltip."""
        if not self.share:
            return format_plain(value)
        return f"{MINUS if value < 0 else ''}{format_plain(abs(100 * value))}{SPACE}%"
