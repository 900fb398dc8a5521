"""Arithmetic of a report in plain Python: running means, thinning, ticks, number formats."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Value = TypeVar("Value")
Point = tuple[float, float]
SPACE = "\u00a0"  # keeps a number and its unit on one line
MINUS = "\u2212"
MAX_POINTS = 600
OUTLIERS = 10
SMALL_P, TINY_P = 1e-3, 1e-300
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def read_number(value: Any) -> float | None:
    """Return the value as a float; None if it is missing, not a number or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):  # an integer in a damaged file may have hundreds of digits
        return float(value) if math.isfinite(value) else None
    return None


def compute_running_mean(values: Sequence[float], window: int) -> list[float]:
    """Compute the centred running mean; the window is truncated at the ends."""
    half = window // 2
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    bounds = [(max(0, at - half), min(len(values), at + half + 1)) for at in range(len(values))]
    return [(sums[stop] - sums[start]) / (stop - start) for start, stop in bounds]


def choose_window(count: int) -> int:
    """Return an odd window that leaves about twenty independent means."""
    return 2 * (count // 40) + 1


def thin_line(points: Sequence[Point]) -> list[Point]:
    """Thin the points of a line to the lowest and the highest of each segment, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return list(points)
    stretches = MAX_POINTS // 2
    thinned: list[Point] = []
    for index in range(stretches):
        part = points[index * len(points) // stretches : (index + 1) * len(points) // stretches]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        thinned += sorted(ends)
    return thinned


def thin_cloud(points: Sequence[Point]) -> list[Point]:
    """Thin the points of a scatter plot to evenly spaced ones and the outliers on both sides."""
    if len(points) <= MAX_POINTS:
        return list(points)
    ordered = sorted(points, key=lambda point: point[1])
    outliers = ordered[:OUTLIERS] + ordered[-OUTLIERS:]
    return sorted({*space_evenly(points, MAX_POINTS - 2 * OUTLIERS), *outliers})


def space_evenly(values: Sequence[Value], limit: int) -> list[Value]:
    """Return at most `limit` evenly spaced values, including the first and the last."""
    if len(values) <= limit:
        return list(values)
    return [values[round(index * (len(values) - 1) / (limit - 1))] for index in range(limit)]


def compute_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers within a range."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power * factor for factor in (1, 2, 2.5, 5, 10)), key=lambda size: abs(math.log(size / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def compute_log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten within a range; if fewer than three, also 2 and 5 times each power."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**power for power in powers if low <= 10.0**power <= high]
    if len(tens) >= 3:
        return tens[:: max(1, len(tens) // 5)]
    return [f * 10.0**power for power in powers for f in (1, 2, 5) if low <= f * 10.0**power <= high]


def format_plain(value: float) -> str:
    """Format a number with about three significant digits."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 999.5:  # three digits would be 1e+03
        shown = f"{size:,.0f}"
    elif size < 1e-3:
        digits, _, exponent = f"{size:.1e}".partition("e")
        shown = f"{digits.removesuffix('.0')}e{MINUS}{abs(int(exponent))}"
    else:
        shown = f"{size:.3g}"
    return (MINUS if value < 0 else "") + shown


def format_percent(value: float | None) -> str:
    """Format a share in percent; a dash for None."""
    return "–" if value is None else f"{100 * value:.1f}{SPACE}%"


def format_interval(figures: Mapping[str, Any]) -> str:
    """Format an accuracy with its 95 % interval from an evaluation summary, marked if it has too few problems."""
    low, high = (f"{100 * figures[bound]:.1f}" for bound in ("ci_lo", "ci_hi"))
    few = " too few" if figures.get("too_few") else ""
    return f"{format_percent(figures['accuracy'])} [{low},{SPACE}{high}]{few}"


def format_points(difference: float) -> str:
    """Format a difference of two shares in percentage points, with its sign."""
    sign = MINUS if round(100 * difference, 1) < 0 else "+"
    return f"{sign}{abs(100 * difference):.1f}"


def format_point_bounds(low: float, high: float) -> str:
    """Format the interval of a difference of two shares in percentage points."""
    return f"[{format_points(low)},{SPACE}{format_points(high)}]"


def format_decimal(value: float | None) -> str:
    """Format a number with one decimal; a dash for None."""
    return "–" if value is None else f"{value:,.1f}"


def format_p_value(value: float | None) -> str:
    """Format a p-value for a sentence: p = 0.012, or p = 3 × 10⁻⁸; a dash for None."""
    if value is None:
        return "–"
    if value < TINY_P:
        return f"p{SPACE}<{SPACE}10⁻³⁰⁰"
    if value < SMALL_P:
        digit, _, exponent = f"{value:.0e}".partition("e-")
        return f"p{SPACE}={SPACE}{digit}{SPACE}×{SPACE}10⁻{exponent.lstrip('0').translate(RAISED)}"
    return f"p{SPACE}={SPACE}{value:.3f}" if value < 1 else f"p{SPACE}={SPACE}1"


def format_duration(seconds: float) -> str:
    """Format a time span in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.1f}{SPACE}s" if seconds < 10 else f"{seconds:.0f}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}{SPACE}min {rest}{SPACE}s"
    return f"{minutes // 60}{SPACE}h {minutes % 60}{SPACE}min"
