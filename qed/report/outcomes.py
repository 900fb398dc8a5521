"""The table of what was measured, with its intervals drawn on one scale, and the figures that decide, large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qed.evaluation.intervals import compute_mcnemar_p
from qed.report.markup import Html, build_element, build_table, join_html
from qed.report.numbers import (
    SPACE,
    format_decimal,
    format_duration,
    format_interval,
    format_p_value,
    format_percent,
    format_points,
    read_number,
)
from qed.report.panels import label_runs
from qed.report.record import DECODINGS, Record
from qed.report.stages import Arms, Comparison, Stage, do_overlap, find_control_stage, find_stages
from qed.runs.run import Row

GLYPH_WIDTH, GLYPH_HEIGHT, EDGE = 200, 28, 5
SCALE = "0 to 100 %"
COLUMNS = ("", "greedy", "sampled", SCALE, "in format", "mean tokens", "truncated", "n")
Tile = tuple[str, str, str]


def render_outcomes(record: Record, task: str) -> Html:
    """One run: a row for each policy that was evaluated, the control among them."""
    rows = [(stage.title, f"step {stage.step:,}", stage) for stage in find_stages(record, task)]
    if last := find_control_stage(record, task):
        rows.append(("Control: SFT continued", f"{last.step:,} more steps", last))
    return _render_table(rows)


def render_finals(records: Sequence[Record], task: str) -> Html:
    """Several runs: the last evaluation of each."""
    found = [(name, find_stages(record, task)[-1:]) for record, name in zip(records, label_runs(records), strict=True)]
    return _render_table([(name, f"{last[0].label}, step {last[0].step:,}", last[0]) for name, last in found if last])


def render_tiles(record: Record, task: str, found: Comparison | None, against: Arms | None) -> Html:
    """The figures that decide, large."""
    known = find_stages(record, task)[-2:]
    shown = [
        *_build_accuracy_tiles(known, found),
        *_build_control_tiles(against),
        *_build_length_tiles(known),
        *_build_time_tiles(record),
    ]
    cells = [
        build_element(
            "div",
            build_element("dt", name),
            build_element("dd", build_element("b", value), build_element("small", below)),
        )
        for name, value, below in shown
    ]
    return build_element("dl", *cells, class_="tiles")


def render_with_interval(figures: Row) -> Html:
    """An accuracy, its interval below it."""
    value, bracket = _split_figure(figures)
    return join_html(build_element("b", value), build_element("small", bracket))


def draw_intervals(figures: Sequence[Row | None]) -> Html:
    """The intervals of both decodings on a line from 0 to 100 %: greedy filled, sampled hollow."""
    drawn = [
        build_element("line", x1=x, x2=x, y1=0, y2=GLYPH_HEIGHT, class_="grid") for x in map(_compute_x, (0, 0.5, 1))
    ]
    for index, some in enumerate(figures):
        if some:
            y = 8 if index == 0 else 20
            low, middle, high = (_compute_x(some[bound]) for bound in ("ci_lo", "accuracy", "ci_hi"))
            drawn.append(build_element("line", x1=low, x2=high, y1=y, y2=y, class_=f"whisker c{index}"))
            drawn.append(
                build_element("circle", cx=middle, cy=y, r=3.5, class_=f"{'hollow' if index else 'mark'} c{index}")
            )
    said = "; ".join(f"{name} {format_interval(some)}" for name, some in zip(DECODINGS, figures, strict=False) if some)
    return _draw_svg(drawn, GLYPH_HEIGHT, said)


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
    measured = [some for some in figures if some]
    return join_html(name, build_element("small", where)), [
        *(render_with_interval(some) if some else join_html("–") for some in figures),
        draw_intervals(figures),
        _format_both(measured, "format", format_percent),
        _format_both(measured, "mean_tokens", format_decimal),
        _format_both(measured, "truncated_frac", format_percent),
        _format_asked(stage.figures),
    ]


def _format_both(figures: Sequence[Row], key: str, write: Callable[[float | None], str]) -> Html:
    """A figure of both decodings, greedy first; the same figure is written once."""
    shown = [write(read_number(some.get(key))) for some in figures]
    return join_html(" / ".join(shown if len(set(shown)) > 1 else shown[:1]))


def _format_asked(figures: dict[str, Row]) -> Html:
    """The number of problems, and of sampled answers where there are several to a problem."""
    answers = figures.get("sampled", {}).get("k", 1)
    return join_html(
        f"{figures['greedy']['n']:,}", build_element("small", f"× {answers} sampled") if answers > 1 else None
    )


def _build_accuracy_tiles(known: Sequence[Stage], found: Comparison | None) -> Iterator[Tile]:
    for stage in known:
        value, bracket = _split_figure(stage.greedy)
        yield f"greedy {stage.label}", value, bracket
    if len(known) == 2:
        first, last = (stage.greedy for stage in known)
        chance = (
            format_p_value(compute_mcnemar_p(found.counts[False, True], found.counts[True, False])) if found else ""
        )
        paired = f"points; exact McNemar {chance}" if found else "points; answers not kept"
        yield "change, greedy", format_points(last["accuracy"] - first["accuracy"]), paired


def _build_length_tiles(known: Sequence[Stage]) -> Iterator[Tile]:
    if len(known) == 2:
        first, last = (stage.greedy for stage in known)
        tokens = [format_decimal(read_number(each.get("mean_tokens"))) for each in (first, last)]
        cut = format_percent(read_number(last.get("truncated_frac")))
        yield "mean tokens, greedy", f"{tokens[0]} → {tokens[1]}", f"{cut} truncated"


def _build_control_tiles(against: Arms | None) -> Iterator[Tile]:
    if against:
        ours, theirs = against.run.greedy, against.control.greedy
        gap = f"{against.phase.label} {format_points(ours['accuracy'] - theirs['accuracy'])} points"
        yield (
            "control, greedy",
            format_percent(theirs["accuracy"]),
            gap + (", intervals overlap" if do_overlap(ours, theirs) else ""),
        )


def _build_time_tiles(record: Record) -> Iterator[Tile]:
    spent = [(phase.label, seconds) for phase in record.phases if (seconds := phase.total("time/step"))]
    if spent:
        each = ", ".join(f"{label} {format_duration(seconds)}" for label, seconds in spent)
        yield "training time", format_duration(sum(seconds for _, seconds in spent)), each


def _split_figure(figures: Row) -> tuple[str, str]:
    value, _, bracket = format_interval(figures).partition(" [")
    return value, f"[{bracket}"


def _draw_svg(drawn: Sequence[Html], height: int, said: str) -> Html:
    size = {"viewBox": f"0 0 {GLYPH_WIDTH} {height}", "width": GLYPH_WIDTH, "height": height}
    return build_element("svg", *drawn, role="img", aria_label=said, class_="glyph", **size)
