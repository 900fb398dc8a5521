"""Line charts as inline SVG. Colours are CSS variables of the page, so that light, dark and print themes can differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qed.report.markup import Html, build_element, join_html
from qed.report.numbers import Point, space_evenly, thin_cloud, thin_line
from qed.report.scales import Span, StepAxis, ValueAxis

DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 2", "1 2", "12 4", "8 2 2 2 2 2")
COLOURS = len(DASHES)
TOP, BOTTOM, RIGHT = 22.0, 36.0, 16.0
PHASE_ROW = 18.0
CHARACTER = 6.4  # width of a digit of a tick label
MAX_TIPS = 60
WIDE, NARROW, HEIGHT = 740, 360, 236


@dataclass(frozen=True)
class Series:
    """Line of a chart, with an optional interval band or with single steps as dots.

    `pieces` are the same points, split at gaps in the line; `marks` draws each point; `tips` are the tooltips.
    """

    label: str
    points: Sequence[Point]
    colour: int = 0
    dots: Sequence[Point] = ()
    band: Sequence[tuple[float, float, float]] = ()
    marks: bool = False
    tips: Sequence[str] = ()
    pieces: Sequence[Sequence[Point]] = ()

    @property
    def dashes(self) -> str | None:
        """Return the dash pattern of the colour."""
        return DASHES[self.colour % COLOURS] or None


@dataclass(frozen=True)
class Chart:
    """Content of one panel; `note` is a sentence below it."""

    title: str
    unit: str
    series: Sequence[Series]
    spans: Sequence[Span]
    share: bool = False
    log: bool = False
    zero: bool = True
    note: str = ""
    wide: bool = False
    height: int = HEIGHT
    size: str = ""

    @property
    def axis(self) -> str:
        """Return the label of the horizontal axis."""
        return f"step ({self.spans[0].label})" if len(self.spans) == 1 and self.spans[0].label else "step"

    def build_value_axis(self) -> ValueAxis:
        """Build the vertical axis that contains all points, dots and bands."""
        values = [y for series in self.series for _, y in (*series.points, *series.dots)]
        values += [bound for series in self.series for _, low, high in series.band for bound in (low, high)]
        return ValueAxis(values, self.share, self.log, self.zero)


def render_figure(chart: Chart) -> Html:
    """Render a chart with its title, legend and note; a wide chart is also drawn for narrow screens."""
    values = chart.build_value_axis()
    drawings = [draw_chart(chart, values, NARROW, "narrow" if chart.wide else None)]
    if chart.wide:
        drawings.append(draw_chart(chart, values, WIDE, "wide"))
    heading = build_element("h3", chart.title, build_element("span", chart.size, class_="size") if chart.size else None)
    note = build_element("p", chart.note, class_="note") if chart.note else None
    return build_element(
        "figure", heading, render_legend(chart, values), *drawings, note, class_="chart wide" if chart.wide else "chart"
    )


def render_legend(chart: Chart, values: ValueAxis) -> Html:
    """Render the label and the last value of each line."""
    entries = []
    for series in chart.series:
        end = f" {values.format_value(series.points[-1][1])}" if series.points else ""
        line = build_element("line", x1=1, x2=27, y1=6, y2=6, class_="line", stroke_dasharray=series.dashes)
        dot = build_element("circle", cx=14, cy=6, r=3.2, class_="mark") if series.marks else None
        swatch = build_element("svg", line, dot, class_="swatch", width=28, height=12, aria_hidden="true")
        entries.append(
            build_element(
                "li",
                swatch,
                build_element("span", series.label),
                build_element("b", end),
                class_=choose_colour_class(series),
            )
        )
    return build_element("ul", *entries, class_="legend")


def choose_colour_class(series: Series) -> str:
    """Return the CSS class with the colour of a series."""
    return f"c{series.colour % COLOURS}"


def draw_chart(chart: Chart, values: ValueAxis, width: int, kind: str | None) -> Html:
    """Draw a chart as SVG; `kind` is its CSS class."""
    phases = len(chart.spans) > 1
    left = 12 + CHARACTER * max(len(values.format_value(tick)) for tick in values.choose_ticks() or [0.0])
    top, floor = TOP + (PHASE_ROW if phases else 0), chart.height - BOTTOM
    steps = StepAxis(chart.spans, left, width - RIGHT - left)
    area = PlotArea(steps, values, top, floor)
    return build_element(
        "svg",
        *_draw_grid(chart, area, left, width - RIGHT),
        *(_draw_phases(area) if phases else ()),
        *(_draw_band(series, area) for series in chart.series if series.band),
        *(_draw_dots(series, area) for series in chart.series if series.dots),
        *(_draw_line(series, area) for series in chart.series),
        *(_draw_tips(series, area) for series in chart.series),
        viewBox=f"0 0 {width} {chart.height}",
        role="img",
        aria_label=describe_chart(chart, values),
        class_=kind,
    )


def describe_chart(chart: Chart, values: ValueAxis) -> str:
    """Describe a chart in a sentence, for screen readers."""
    ends = [
        f"{series.label} from {values.format_value(series.points[0][1])} to {values.format_value(series.points[-1][1])}"
        for series in chart.series
        if series.points
    ]
    first, last = chart.spans[0].first, chart.spans[-1].last
    return f"{chart.title}, {chart.unit}, steps {first:,.0f} to {last:,.0f}: {'; '.join(ends)}."


@dataclass(frozen=True)
class PlotArea:
    """Coordinates of steps and values in one drawing."""

    steps: StepAxis
    values: ValueAxis
    top: float
    floor: float

    def x(self, step: float) -> float:
        """Return the x coordinate of a step."""
        return round(self.steps.locate(step), 1)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return round(self.floor - (self.floor - self.top) * self.values.compute_height(value), 1)

    def format_point(self, point: Point) -> str:
        """Format a point for an SVG path."""
        return f"{self.x(point[0]):g},{self.y(point[1]):g}"


def _draw_grid(chart: Chart, area: PlotArea, left: float, right: float) -> Iterable[Html]:
    unit = chart.unit + (" (log scale)" if area.values.log else "")
    yield build_element("text", unit, x=4, y=12, class_="unit")
    for tick in area.values.choose_ticks():
        y = area.y(tick)
        yield build_element("line", x1=round(left, 1), x2=right, y1=y, y2=y, class_="grid")
        yield build_element("text", area.values.format_value(tick), x=round(left - 6, 1), y=y + 4, class_="tick end")
    for tick in area.steps.choose_ticks():
        x = area.x(tick)
        yield build_element("line", x1=x, x2=x, y1=area.floor, y2=area.floor + 4, class_="axis")
        yield build_element("text", f"{tick:,.0f}", x=x, y=area.floor + 16, class_="tick middle")
    yield build_element("line", x1=round(left, 1), x2=right, y1=area.floor, y2=area.floor, class_="axis")
    yield build_element("text", chart.axis, x=right, y=chart.height - 3, class_="unit end")


def _draw_phases(area: PlotArea) -> Iterable[Html]:
    edges = area.steps.edges
    for number, (span, left, right) in enumerate(zip(area.steps.spans, edges, edges[1:], strict=False)):
        yield build_element("text", span.label, x=round((left + right) / 2, 1), y=area.top - 7, class_="phase middle")
        if number:
            x = round(left, 1)
            yield build_element("line", x1=x, x2=x, y1=area.top - 18, y2=area.floor, class_="boundary")


def _draw_band(series: Series, area: PlotArea) -> Html:
    if len(series.band) == 1:
        step, low, high = series.band[0]
        x = area.x(step)
        return build_element(
            "line", x1=x, x2=x, y1=area.y(low), y2=area.y(high), class_=f"whisker {choose_colour_class(series)}"
        )
    upper = [area.format_point((step, high)) for step, _, high in series.band]
    lower = [area.format_point((step, low)) for step, low, _ in reversed(series.band)]
    return build_element("path", d=f"M{'L'.join([*upper, *lower])}Z", class_=f"band {choose_colour_class(series)}")


def _draw_dots(series: Series, area: PlotArea) -> Html:
    """Draw single steps as one path with round line caps, because circles would make up most of the page's size."""
    return build_element(
        "path",
        d="".join(f"M{area.format_point(dot)}h0" for dot in thin_cloud(series.dots)),
        class_=f"dots {choose_colour_class(series)}",
    )


def _draw_line(series: Series, area: PlotArea) -> Html | None:
    pieces = [thin_line(piece) for piece in series.pieces or (series.points,) if len(piece) > 1]
    if not pieces:
        return None
    path = "".join("M" + "L".join(map(area.format_point, piece)) for piece in pieces)
    return build_element("path", d=path, class_=f"line {choose_colour_class(series)}", stroke_dasharray=series.dashes)


def _draw_tips(series: Series, area: PlotArea) -> Html:
    """Draw the points with tooltips: visible if each point is an evaluation, else only as hover targets."""
    single = len(series.points) == 1
    tips = dict(zip(series.points, series.tips, strict=False))
    chosen = series.points if series.marks else space_evenly(series.points, MAX_TIPS)
    visible = series.marks or single
    return join_html(
        *(
            build_element(
                "circle",
                build_element(
                    "title",
                    tips.get(point) or f"{series.label}, step {point[0]:,.0f}: {area.values.format_value(point[1])}",
                ),
                cx=area.x(point[0]),
                cy=area.y(point[1]),
                r=3 if visible else 6,
                class_=f"{'mark' if visible else 'feel'} {choose_colour_class(series)}",
            )
            for point in thin_line(chosen)
        )
    )
