"""Line charts as inline SVG. Colours come from the page's variables, so that light, dark and print can differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qed.report.markup import Html, build_element, join_html
from qed.report.numbers import Point, space_evenly, thin_cloud, thin_line
from qed.report.scales import Span, Steps, Values

DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 2", "1 2", "12 4", "8 2 2 2 2 2")
COLOURS = len(DASHES)
TOP, BOTTOM, RIGHT = 22.0, 36.0, 16.0
PHASE_ROW = 18.0
CHARACTER = 6.4  # the width of a tick's digit
MOST_TIPS = 60
WIDE, NARROW, HEIGHT = 740, 360, 236


@dataclass(frozen=True)
class Series:
    """One line of a chart: a measured curve, with an interval band or with the single steps behind it.

    `pieces` are the points again where the line is to be broken; `marks` draws each point, `tips` says what it is.
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
        """The dash pattern, another one for each colour."""
        return DASHES[self.colour % COLOURS] or None


@dataclass(frozen=True)
class Chart:
    """What is drawn in one panel; `note` is a sentence below it."""

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
        """What lies along the horizontal axis."""
        return f"step ({self.spans[0].label})" if len(self.spans) == 1 and self.spans[0].label else "step"

    def values(self) -> Values:
        """The vertical axis that holds everything that is drawn."""
        drawn = [y for series in self.series for _, y in (*series.points, *series.dots)]
        drawn += [bound for series in self.series for _, low, high in series.band for bound in (low, high)]
        return Values(drawn, self.share, self.log, self.zero)


def render_figure(chart: Chart) -> Html:
    """A chart with its title, legend and note; a wide one is drawn a second time for narrow screens."""
    values = chart.values()
    drawings = [draw_chart(chart, values, NARROW, "narrow" if chart.wide else None)]
    if chart.wide:
        drawings.append(draw_chart(chart, values, WIDE, "wide"))
    heading = build_element("h3", chart.title, build_element("span", chart.size, class_="size") if chart.size else None)
    note = build_element("p", chart.note, class_="note") if chart.note else None
    return build_element(
        "figure", heading, render_legend(chart, values), *drawings, note, class_="chart wide" if chart.wide else "chart"
    )


def render_legend(chart: Chart, values: Values) -> Html:
    """What each line is, and where it ended."""
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
    """The class that sets the colour of a series."""
    return f"c{series.colour % COLOURS}"


def draw_chart(chart: Chart, values: Values, width: int, only: str | None) -> Html:
    """The drawing itself."""
    phases = len(chart.spans) > 1
    left = 12 + CHARACTER * max(len(values.format_value(tick)) for tick in values.ticks() or [0.0])
    top, floor = TOP + (PHASE_ROW if phases else 0), chart.height - BOTTOM
    steps = Steps(chart.spans, left, width - RIGHT - left)
    place = Place(steps, values, top, floor)
    return build_element(
        "svg",
        *_draw_grid(chart, place, left, width - RIGHT),
        *(_draw_phases(place) if phases else ()),
        *(_draw_band(series, place) for series in chart.series if series.band),
        *(_draw_dots(series, place) for series in chart.series if series.dots),
        *(_draw_line(series, place) for series in chart.series),
        *(_draw_tips(series, place) for series in chart.series),
        viewBox=f"0 0 {width} {chart.height}",
        role="img",
        aria_label=describe_chart(chart, values),
        class_=only,
    )


def describe_chart(chart: Chart, values: Values) -> str:
    """A chart in a sentence, for those who do not see it."""
    ends = [
        f"{series.label} from {values.format_value(series.points[0][1])} to {values.format_value(series.points[-1][1])}"
        for series in chart.series
        if series.points
    ]
    first, last = chart.spans[0].first, chart.spans[-1].last
    return f"{chart.title}, {chart.unit}, steps {first:,.0f} to {last:,.0f}: {'; '.join(ends)}."


@dataclass(frozen=True)
class Place:
    """Where steps and values lie in one drawing."""

    steps: Steps
    values: Values
    top: float
    floor: float

    def x(self, step: float) -> float:
        """Across."""
        return round(self.steps.at(step), 1)

    def y(self, value: float) -> float:
        """Down."""
        return round(self.floor - (self.floor - self.top) * self.values.share_of_height(value), 1)

    def pair(self, point: Point) -> str:
        """A point as a path names it."""
        return f"{self.x(point[0]):g},{self.y(point[1]):g}"


def _draw_grid(chart: Chart, place: Place, left: float, right: float) -> Iterable[Html]:
    unit = chart.unit + (" (log scale)" if place.values.log else "")
    yield build_element("text", unit, x=4, y=12, class_="unit")
    for tick in place.values.ticks():
        y = place.y(tick)
        yield build_element("line", x1=round(left, 1), x2=right, y1=y, y2=y, class_="grid")
        yield build_element("text", place.values.format_value(tick), x=round(left - 6, 1), y=y + 4, class_="tick end")
    for tick in place.steps.ticks():
        x = place.x(tick)
        yield build_element("line", x1=x, x2=x, y1=place.floor, y2=place.floor + 4, class_="axis")
        yield build_element("text", f"{tick:,.0f}", x=x, y=place.floor + 16, class_="tick middle")
    yield build_element("line", x1=round(left, 1), x2=right, y1=place.floor, y2=place.floor, class_="axis")
    yield build_element("text", chart.axis, x=right, y=chart.height - 3, class_="unit end")


def _draw_phases(place: Place) -> Iterable[Html]:
    edges = place.steps.edges
    for number, (span, left, right) in enumerate(zip(place.steps.spans, edges, edges[1:], strict=False)):
        yield build_element("text", span.label, x=round((left + right) / 2, 1), y=place.top - 7, class_="phase middle")
        if number:
            x = round(left, 1)
            yield build_element("line", x1=x, x2=x, y1=place.top - 18, y2=place.floor, class_="boundary")


def _draw_band(series: Series, place: Place) -> Html:
    if len(series.band) == 1:
        step, low, high = series.band[0]
        x = place.x(step)
        return build_element(
            "line", x1=x, x2=x, y1=place.y(low), y2=place.y(high), class_=f"whisker {choose_colour_class(series)}"
        )
    upper = [place.pair((step, high)) for step, _, high in series.band]
    lower = [place.pair((step, low)) for step, low, _ in reversed(series.band)]
    return build_element("path", d=f"M{'L'.join([*upper, *lower])}Z", class_=f"band {choose_colour_class(series)}")


def _draw_dots(series: Series, place: Place) -> Html:
    """Single steps as one path of round ends: a circle for each would be most of the page."""
    return build_element(
        "path",
        d="".join(f"M{place.pair(dot)}h0" for dot in thin_cloud(series.dots)),
        class_=f"dots {choose_colour_class(series)}",
    )


def _draw_line(series: Series, place: Place) -> Html | None:
    pieces = [thin_line(piece) for piece in series.pieces or (series.points,) if len(piece) > 1]
    if not pieces:
        return None
    path = "".join("M" + "L".join(map(place.pair, piece)) for piece in pieces)
    return build_element("path", d=path, class_=f"line {choose_colour_class(series)}", stroke_dasharray=series.dashes)


def _draw_tips(series: Series, place: Place) -> Html:
    """Points that say their step and value under the pointer: drawn where each is a measurement, else only felt."""
    single = len(series.points) == 1
    tips = dict(zip(series.points, series.tips, strict=False))
    chosen = series.points if series.marks else space_evenly(series.points, MOST_TIPS)
    visible = series.marks or single
    return join_html(
        *(
            build_element(
                "circle",
                build_element(
                    "title",
                    tips.get(point) or f"{series.label}, step {point[0]:,.0f}: {place.values.format_value(point[1])}",
                ),
                cx=place.x(point[0]),
                cy=place.y(point[1]),
                r=3 if visible else 6,
                class_=f"{'mark' if visible else 'feel'} {choose_colour_class(series)}",
            )
            for point in thin_line(chosen)
        )
    )
