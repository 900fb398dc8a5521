"""Table of evaluated policies with their intervals on a common scale, and tiles with the key figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qed.report.adjusted import AdjustedTest
from qed.report.markup import Html, build_element, build_table, join_html
from qed.report.numbers import (
    SPACE,
    format_decimal,
    format_duration,
    format_interval,
    format_percent,
    format_points,
    read_number,
)
from qed.report.panels import label_runs
from qed.report.record import DECODINGS, Record
from qed.report.stages import Comparison, ControlComparison, Stage, find_control_stage, find_stages
from qed.runs.run import Row

GLYPH_WIDTH, GLYPH_HEIGHT, EDGE = 200, 28, 5
SCALE = "0 to 100 %"
COLUMNS = ("", "greedy", "sampled", SCALE, "in format", "mean tokens", "truncated", "n")
Tile = tuple[str, str, str]


def render_outcomes(record: Record, task: str) -> Html:
    """Render one run: a row for each evaluated policy, including the control."""
    rows = [(stage.title, f"step {stage.step:,}", stage) for stage in find_stages(record, task)]
    if last := find_control_stage(record, task):
        rows.append(("Control: SFT continued", f"{last.step:,} more steps", last))
    return _render_table(rows)


def render_finals(records: Sequence[Record], task: str) -> Html:
    """Render several runs: the last evaluation of each."""
    stages = [(name, find_stages(record, task)[-1:]) for record, name in zip(records, label_runs(records), strict=True)]
    return _render_table([(name, f"{last[0].label}, step {last[0].step:,}", last[0]) for name, last in stages if last])


def render_tiles(record: Record, task: str, comparison: Comparison | None, control: ControlComparison | None) -> Html:
    """Render the key figures as tiles."""
    stages = find_stages(record, task)[-2:]
    tiles = [
        *_build_accuracy_tiles(stages, comparison),
        *_build_control_tiles(control),
        *_build_length_tiles(stages),
        *_build_time_tiles(record),
    ]
    cells = [
        build_element(
            "div",
            build_element("dt", name),
            build_element("dd", build_element("b", value), build_element("small", below)),
        )
        for name, value, below in tiles
    ]
    return build_element("dl", *cells, class_="tiles")


def render_with_interval(figures: Row) -> Html:
    """Render an accuracy with its interval below it."""
    value, bracket = _split_figure(figures)
    return join_html(build_element("b", value), build_element("small", bracket))


def draw_intervals(figures: Sequence[Row | None]) -> Html:
    """Draw the intervals of both decodings on a scale from 0 to 100 %: greedy filled, sampled hollow."""
    drawn = [
        build_element("line", x1=x, x2=x, y1=0, y2=GLYPH_HEIGHT, class_="grid") for x in map(_compute_x, (0, 0.5, 1))
    ]
    for index, row in enumerate(figures):
        if row:
            y = 8 if index == 0 else 20
            low, middle, high = (_compute_x(row[bound]) for bound in ("ci_lo", "accuracy", "ci_hi"))
            drawn.append(build_element("line", x1=low, x2=high, y1=y, y2=y, class_=f"whisker c{index}"))
            drawn.append(
                build_element("circle", cx=middle, cy=y, r=3.5, class_=f"{'hollow' if index else 'mark'} c{index}")
            )
    label = "; ".join(f"{name} {format_interval(row)}" for name, row in zip(DECODINGS, figures, strict=False) if row)
    return _draw_svg(drawn, GLYPH_HEIGHT, label)


def _render_table(rows: Sequence[tuple[str, str, Stage]]) -> Html:
    marks = ((0.0, "0", "middle"), (0.5, "50", "middle"), (1.0, f"100{SPACE}%", "end"))
    scale = _draw_svg(
        [build_element("text", mark, x=_compute_x(at), y=12, class_=side) for at, mark, side in marks], 16, SCALE
    )
    return build_table(COLUMNS, [_build_row(*row) for row in rows], kind="outcomes stack", heads={SCALE: scale})


def _compute_x(share: float) -> float:
    return round(EDGE + share * (GLYPH_WIDTH - 2 * EDGE), 1)


def _build_row(name: str, where: str, stage: Stage) -> tuple[Html, list[Html]]:
    figures = [stage.figures.get(decoding) for decoding in DECODINGS]
    measured = [row for row in figures if row]
    return join_html(name, build_element("small", where)), [
        *(render_with_interval(row) if row else join_html("–") for row in figures),
        draw_intervals(figures),
        _format_both(measured, "format", format_percent),
        _format_both(measured, "mean_tokens", format_decimal),
        _format_both(measured, "truncated_frac", format_percent),
        _format_counts(stage.figures),
    ]


def _format_both(figures: Sequence[Row], key: str, write: Callable[[float | None], str]) -> Html:
    """Format a figure of both decodings, greedy first; equal figures appear once."""
    shown = [write(read_number(row.get(key))) for row in figures]
    return join_html(" / ".join(shown if len(set(shown)) > 1 else shown[:1]))


def _format_counts(figures: dict[str, Row]) -> Html:
    """Format the number of problems, and of sampled answers to each if there are several."""
    answers = figures.get("sampled", {}).get("k", 1)
    return join_html(
        f"{figures['greedy']['n']:,}", build_element("small", f"× {answers} sampled") if answers > 1 else None
    )


def _build_accuracy_tiles(stages: Sequence[Stage], comparison: Comparison | None) -> Iterator[Tile]:
    for stage in stages:
        value, bracket = _split_figure(stage.greedy)
        yield f"greedy {stage.label}", value, bracket
    if len(stages) == 2:
        first, last = (stage.greedy for stage in stages)
        paired = _name_test(comparison.tests.get("greedy") if comparison else None)
        yield "change, greedy", format_points(last["accuracy"] - first["accuracy"]), f"points; {paired}"


def _name_test(adjusted: AdjustedTest | None) -> str:
    """Return the name of a paired test with its p-values."""
    if adjusted is None:
        return "no paired test: no answers to the same problems"
    name = "" if adjusted.test.p_value is None else f"{adjusted.test.test} "
    return f"{name}{adjusted.format_p_values()}"


def _build_length_tiles(stages: Sequence[Stage]) -> Iterator[Tile]:
    if len(stages) == 2:
        first, last = (stage.greedy for stage in stages)
        tokens = [format_decimal(read_number(row.get("mean_tokens"))) for row in (first, last)]
        cut = format_percent(read_number(last.get("truncated_frac")))
        yield "mean tokens, greedy", f"{tokens[0]} → {tokens[1]}", f"{cut} truncated"


def _build_control_tiles(control: ControlComparison | None) -> Iterator[Tile]:
    if control:
        ours, theirs = control.run.greedy, control.control.greedy
        gap = f"{control.phase.label} {format_points(ours['accuracy'] - theirs['accuracy'])} points"
        yield "control, greedy", format_percent(theirs["accuracy"]), f"{gap}; {_name_test(control.tests.get('greedy'))}"


def _build_time_tiles(record: Record) -> Iterator[Tile]:
    times = [(phase.label, seconds) for phase in record.phases if (seconds := phase.compute_total("time/step"))]
    if times:
        parts = ", ".join(f"{label} {format_duration(seconds)}" for label, seconds in times)
        yield "training time", format_duration(sum(seconds for _, seconds in times)), parts


def _split_figure(figures: Row) -> tuple[str, str]:
    value, _, bracket = format_interval(figures).partition(" [")
    return value, f"[{bracket}"


def _draw_svg(drawn: Sequence[Html], height: int, label: str) -> Html:
    size = {"viewBox": f"0 0 {GLYPH_WIDTH} {height}", "width": GLYPH_WIDTH, "height": height}
    return build_element("svg", *drawn, role="img", aria_label=label, class_="glyph", **size)
