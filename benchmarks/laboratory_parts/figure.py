"""The figure of the laboratory, an SVG: each run's held-out accuracy, by task and method."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from laboratory_parts.analysis import Arm, TaskStudy, compute_seed_interval

COLOURS = {"control": "#6b7280", "guidance": "#2563eb", "distillation": "#d97706"}
LEFT, PANEL, GAP, TOP, ROW = 160, 230, 44, 56, 22


def draw_figure(studies: Sequence[TaskStudy]) -> str:
    """Draw a panel for each task: a dot for each seed, a bar for the mean with its interval, a line at the start."""
    names = list(dict.fromkeys(arm.name for study in studies for arm in study.arms))
    width, height = LEFT + len(studies) * (PANEL + GAP), TOP + ROW * len(names) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12" role="img">',
        "<title>Held-out accuracy of each method on each task</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(draw_text(LEFT - 10, TOP + ROW * row + 15, name, "end") for row, name in enumerate(names)),
    ]
    for number, study in enumerate(studies):
        parts += _draw_panel(study, names, LEFT + number * (PANEL + GAP))
    legend = [
        f'<circle cx="{LEFT + 110 * n}" cy="{height - 10}" r="4" fill="{colour}"/>'
        + draw_text(LEFT + 110 * n + 8, height - 6, kind)
        for n, (kind, colour) in enumerate(COLOURS.items())
    ]
    return "\n".join([*parts, *legend, "</svg>"]) + "\n"


def _draw_panel(study: TaskStudy, names: Sequence[str], left: int) -> list[str]:
    bottom = TOP + ROW * len(names)
    parts = [draw_text(left + PANEL / 2, 18, study.task, "middle")]
    for tick in (0, 25, 50, 75, 100):
        x = _place(left, tick / 100)
        parts += [draw_line(x, TOP, x, bottom, "#e5e7eb"), draw_text(x, bottom + 14, f"{tick} %", "middle")]
    start = _place(left, float(study.start.sampled.mean()))
    best = _place(left, float(study.find_best_control().sampled.mean()))
    parts += [
        draw_line(start, TOP, start, bottom, "#dc2626", "4 3"),
        draw_line(best, TOP, best, bottom, COLOURS["control"]),
    ]
    parts += [draw_text(start, TOP - 6, "start", "middle"), draw_text(best, TOP - 16, "best control", "middle")]
    for arm in study.arms:
        parts += _draw_arm(arm, left, TOP + ROW * names.index(arm.name) + ROW // 2)
    return parts


def _draw_arm(arm: Arm, left: int, y: int) -> list[str]:
    colour = COLOURS[arm.kind]
    low, high = (_place(left, bound) for bound in compute_seed_interval(arm.sampled))
    middle = _place(left, float(arm.sampled.mean()))
    dots = [
        f'<circle cx="{_place(left, float(mean)):.1f}" cy="{y}" r="3" fill="{colour}" fill-opacity="0.45"/>'
        for mean in arm.sampled.mean(1)
    ]
    return [
        *dots,
        draw_line(low, y, high, y, colour, width=2),
        draw_line(middle, y - 6, middle, y + 6, colour, width=2),
    ]


def _place(left: int, share: float) -> float:
    return left + share * PANEL


def draw_line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "", width: int = 1) -> str:
    """Return a line between two points."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dashed}/>'


def draw_text(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Return a text that starts, ends or is centred at a point."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#111827">{escape(text)}</text>'
