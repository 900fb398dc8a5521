"""From steps and values to places on a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qed.report.numbers import MINUS, SPACE, compute_log_ticks, compute_ticks, format_plain

LABEL_ROOM = 46.0  # a tick's label with air around it
SMALLEST_SHARE = 0.3  # of the width, for a phase beside others
SPREAD_FOR_LOG = 15.0
MOST_TICKS = 6


@dataclass(frozen=True)
class Span:
    """A stretch of steps under one name; `weight` is its share of the width."""

    label: str
    first: float
    last: float
    weight: float = 1.0


class Steps:
    """The horizontal axis. Each phase has a scale of its own, so that a short phase can be read beside a long one."""

    def __init__(self, spans: Sequence[Span], left: float, width: float) -> None:
        whole = sum(span.weight for span in spans) or 1.0
        # A share below the smallest is lifted to it and the others give way, in proportion.
        lifted = [max(span.weight / whole, SMALLEST_SHARE if len(spans) <= 3 else 0.1) for span in spans]
        edges = [left]
        for share in lifted:
            edges.append(edges[-1] + width * share / sum(lifted))
        self.spans = list(spans)
        self.edges = edges

    def at(self, step: float) -> float:
        """Where a step lies; steps outside lie on the edge."""
        index = next((i for i, span in enumerate(self.spans) if step <= span.last), len(self.spans) - 1)
        span, left, right = self.spans[index], self.edges[index], self.edges[index + 1]
        if span.last <= span.first:
            return (left + right) / 2
        share = (step - span.first) / (span.last - span.first)
        return left + (right - left) * min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Steps to label, none too near to another."""
        # The ends of a phase are what its boundary is about, so they come first and the ticks between make room.
        wanted = [end for span in self.spans for end in (span.first, span.last)]
        for span, left, right in zip(self.spans, self.edges, self.edges[1:], strict=False):
            about = min(int((right - left) / LABEL_ROOM), MOST_TICKS // len(self.spans))
            wanted += [tick for tick in compute_ticks(span.first, span.last, max(1, about)) if tick % 1 == 0]
        kept: list[float] = []
        for tick in wanted:
            if all(abs(self.at(tick) - self.at(other)) >= LABEL_ROOM - 8 for other in kept):
                kept.append(tick)
        return sorted(kept)


class Values:
    """The vertical axis: linear and with its zero, or logarithmic when that is asked for and the values spread far."""

    def __init__(self, values: Sequence[float], share: bool = False, log: bool = False, zero: bool = True) -> None:
        low, high = min(values, default=0.0), max(values, default=1.0)
        self.share, self.step = share, 0.0
        self.log = log and low > 0 and high / low > SPREAD_FOR_LOG
        if not self.log:
            low, high = (min(0.0, low), max(0.0, high)) if zero or share else (low, high)
            high = max(high, 0.05) if share else high
            if high <= low:
                # A constant still needs a range to be drawn in.
                low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
            low, high = self._rounded(low, high)
        self.low, self.high = low, high

    def _rounded(self, low: float, high: float) -> tuple[float, float]:
        """The range widened to whole ticks, whose distance is kept."""
        if self.share and low >= 0 and 0.5 < high <= 1:
            self.step = 0.25
            return 0.0, 1.0
        marks = compute_ticks(low, high, 4)
        self.step = marks[1] - marks[0] if len(marks) > 1 else high - low
        first, last = math.floor(low / self.step + 1e-9), math.ceil(high / self.step - 1e-9)
        return first * self.step, last * self.step

    def share_of_height(self, value: float) -> float:
        """0 at the lower edge, 1 at the upper."""
        if self.log:
            return (math.log(max(value, self.low)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (min(self.high, max(self.low, value)) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Values to label."""
        if self.log:
            return compute_log_ticks(self.low, self.high)
        return [self.low + index * self.step for index in range(round((self.high - self.low) / self.step) + 1)]

    def format_value(self, value: float) -> str:
        """A value as its tick or its tip reads."""
        if not self.share:
            return format_plain(value)
        return f"{MINUS if value < 0 else ''}{format_plain(abs(100 * value))}{SPACE}%"
