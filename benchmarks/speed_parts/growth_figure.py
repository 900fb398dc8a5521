"""The figure of how CPU time grows, an SVG: a panel for each axis, both scales logarithmic, labelled with slopes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laboratory_parts.figure import draw_line, draw_text

from qed.report.numbers import compute_log_ticks, format_plain

COLOURS = ("#2563eb", "#d97706")
LEFT, WIDTH, TOP, HEIGHT, COLUMN, ROW = 60, 300, 40, 190, 400, 290
PAD = 1.15  # factor by which the scales extend beyond the points
LEGEND = 1.6  # factor of additional room above them


@dataclass(frozen=True)
class Panel:
    """Points of an axis: `title`, the unit of the axis, and for each line its name and its points (x, seconds)."""

    title: str
    unit: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def fit_slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit a least-squares line to the logarithms: return its slope, and its value at 1; seconds grow as x to the slope.

    Raises:
        ValueError: all points have the same x.
    """
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    middle, height = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - middle) ** 2 for x in xs)
    if not spread:
        raise ValueError("A slope needs two different x values.")
    slope = sum((x - middle) * (y - height) for x, y in zip(xs, ys, strict=True)) / spread
    return slope, math.exp(height - slope * middle)


def draw_growth(panels: Sequence[Panel]) -> str:
    """Draw the panels, two in a row."""
    rows = math.ceil(len(panels) / 2)
    width, height = 2 * COLUMN, rows * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12" role="img">',
        "<title>Processor time of sampling and of the update as the work grows</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _draw_panel(panel, LEFT + number % 2 * COLUMN, TOP + number // 2 * ROW)
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Scale:
    """Logarithmic positions between two ends."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = min(values) / PAD, max(values) * PAD, start, end

    def locate(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def list_ticks(self) -> list[float]:
        return compute_log_ticks(self.low, self.high)


def _draw_panel(panel: Panel, left: float, top: float) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    across = _Scale([x for x, _ in points], left, left + WIDTH)
    seconds = [y for _, y in points]
    up = _Scale([*seconds, LEGEND * max(seconds)], top + HEIGHT, top)
    bottom = top + HEIGHT
    parts = [draw_text(left, top - 22, panel.title), draw_text(left + WIDTH / 2, bottom + 34, panel.unit, "middle")]
    parts += [draw_text(left - 8, top - 6, "CPU s", "end")]
    for tick in across.list_ticks():
        x = across.locate(tick)
        parts += [draw_line(x, top, x, bottom, "#e5e7eb"), draw_text(x, bottom + 16, _shorten(tick), "middle")]
    for tick in up.list_ticks():
        y = up.locate(tick)
        parts += [draw_line(left, y, left + WIDTH, y, "#e5e7eb"), draw_text(left - 8, y + 4, format_plain(tick), "end")]
    for number, (name, line) in enumerate(panel.lines.items()):
        parts += _draw_points(name, line, COLOURS[number % len(COLOURS)], across, up)
        parts.append(_draw_legend(name, line, left + 6, top + 14 + 16 * number, COLOURS[number % len(COLOURS)]))
    return parts


def _draw_points(name: str, line: Sequence[tuple[float, float]], colour: str, across: _Scale, up: _Scale) -> list[str]:
    slope, factor = fit_slope(line)
    ends = [(x, factor * x**slope) for x in (min(line)[0], max(line)[0])]
    (x1, y1), (x2, y2) = ((across.locate(x), up.locate(y)) for x, y in ends)
    parts = [draw_line(x1, y1, x2, y2, colour, "5 3")]
    for x, y in line:
        told = f"<title>{name}, {format_plain(x)}: {y:.3g} CPU s</title>"
        place = f'cx="{across.locate(x):.1f}" cy="{up.locate(y):.1f}"'
        parts.append(f'<circle {place} r="4" fill="{colour}">{told}</circle>')
    return parts


def _draw_legend(name: str, line: Sequence[tuple[float, float]], x: float, y: float, colour: str) -> str:
    dot = f'<circle cx="{x:.1f}" cy="{y - 4:.1f}" r="4" fill="{colour}"/>'
    return dot + draw_text(x + 9, y, f"{name}: slope {fit_slope(line)[0]:.2f}")


def _shorten(value: float) -> str:
    """Format large numbers with k or M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
