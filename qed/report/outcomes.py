"""The table of what was measured, with its intervals drawn on one scale, and the figures that decide, large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qed.evaluation.intervals import mcnemar
from qed.report.markup import Html, element, join, table
from qed.report.numbers import SPACE, duration, interval, number, one_decimal, p_value, percent, points
from qed.report.panels import labels
from qed.report.record import DECODINGS, Record
from qed.report.stages import Arms, Comparison, Stage, control_stage, overlap, stages
from qed.runs.run import Row

GLYPH_WIDTH, GLYPH_HEIGHT, EDGE = 200, 28, 5
SCALE = "0 to 100 %"
COLUMNS = ("", "greedy", "sampled", SCALE, "in format", "mean tokens", "truncated", "n")
Tile = tuple[str, str, str]


def outcomes(record: Record, task: str) -> Html:
    """One run: a row for each policy that was evaluated, the control among them."""
    rows = [(stage.title, f"step {stage.step:,}", stage) for stage in stages(record, task)]
    if last := control_stage(record, task):
        rows.append(("Control: SFT continued", f"{last.step:,} more steps", last))
    return _table(rows)


def finals(records: Sequence[Record], task: str) -> Html:
    """Several runs: the last evaluation of each."""
    found = [(name, stages(record, task)[-1:]) for record, name in zip(records, labels(records), strict=True)]
    return _table([(name, f"{last[0].label}, step {last[0].step:,}", last[0]) for name, last in found if last])


def tiles(record: Record, task: str, found: Comparison | None, against: Arms | None) -> Html:
    """The figures that decide, large."""
    known = stages(record, task)[-2:]
    shown = [*_reached(known, found), *_control(against), *_lengths(known), *_time(record)]
    cells = [
        element("div", element("dt", name), element("dd", element("b", value), element("small", below)))
        for name, value, below in shown
    ]
    return element("dl", *cells, class_="tiles")


def with_interval(figures: Row) -> Html:
    """An accuracy, its interval below it."""
    value, bracket = _parted(figures)
    return join(element("b", value), element("small", bracket))


def glyph(figures: Sequence[Row | None]) -> Html:
    """The intervals of both decodings on a line from 0 to 100 %: greedy filled, sampled hollow."""
    drawn = [element("line", x1=x, x2=x, y1=0, y2=GLYPH_HEIGHT, class_="grid") for x in map(_across, (0, 0.5, 1))]
    for index, some in enumerate(figures):
        if some:
            y = 8 if index == 0 else 20
            low, middle, high = (_across(some[bound]) for bound in ("ci_lo", "accuracy", "ci_hi"))
            drawn.append(element("line", x1=low, x2=high, y1=y, y2=y, class_=f"whisker c{index}"))
            drawn.append(element("circle", cx=middle, cy=y, r=3.5, class_=f"{'hollow' if index else 'mark'} c{index}"))
    said = "; ".join(f"{name} {interval(some)}" for name, some in zip(DECODINGS, figures, strict=False) if some)
    return _drawing(drawn, GLYPH_HEIGHT, said)


def _table(rows: Sequence[tuple[str, str, Stage]]) -> Html:
    marks = ((0.0, "0", "middle"), (0.5, "50", "middle"), (1.0, f"100{SPACE}%", "end"))
    scale = _drawing([element("text", mark, x=_across(at), y=12, class_=side) for at, mark, side in marks], 16, SCALE)
    return table(COLUMNS, [_row(*row) for row in rows], kind="outcomes stack", heads={SCALE: scale})


def _across(share: float) -> float:
    return round(EDGE + share * (GLYPH_WIDTH - 2 * EDGE), 1)


def _row(name: str, where: str, stage: Stage) -> tuple[Html, list[Html]]:
    figures = [stage.figures.get(decoding) for decoding in DECODINGS]
    measured = [some for some in figures if some]
    return join(name, element("small", where)), [
        *(with_interval(some) if some else join("–") for some in figures),
        glyph(figures),
        _both(measured, "format", percent),
        _both(measured, "mean_tokens", one_decimal),
        _both(measured, "truncated_frac", percent),
        _asked(stage.figures),
    ]


def _both(figures: Sequence[Row], key: str, write: Callable[[float | None], str]) -> Html:
    """A figure of both decodings, greedy first; the same figure is written once."""
    shown = [write(number(some.get(key))) for some in figures]
    return join(" / ".join(shown if len(set(shown)) > 1 else shown[:1]))


def _asked(figures: dict[str, Row]) -> Html:
    """The number of problems, and of sampled answers where there are several to a problem."""
    answers = figures.get("sampled", {}).get("k", 1)
    return join(f"{figures['greedy']['n']:,}", element("small", f"× {answers} sampled") if answers > 1 else None)


def _reached(known: Sequence[Stage], found: Comparison | None) -> Iterator[Tile]:
    for stage in known:
        value, bracket = _parted(stage.greedy)
        yield f"greedy {stage.label}", value, bracket
    if len(known) == 2:
        first, last = (stage.greedy for stage in known)
        chance = p_value(mcnemar(found.counts[False, True], found.counts[True, False])) if found else ""
        paired = f"points; exact McNemar {chance}" if found else "points; answers not kept"
        yield "change, greedy", points(last["accuracy"] - first["accuracy"]), paired


def _lengths(known: Sequence[Stage]) -> Iterator[Tile]:
    if len(known) == 2:
        first, last = (stage.greedy for stage in known)
        tokens = [one_decimal(number(each.get("mean_tokens"))) for each in (first, last)]
        cut = percent(number(last.get("truncated_frac")))
        yield "mean tokens, greedy", f"{tokens[0]} → {tokens[1]}", f"{cut} truncated"


def _control(against: Arms | None) -> Iterator[Tile]:
    if against:
        ours, theirs = against.run.greedy, against.control.greedy
        gap = f"{against.phase.label} {points(ours['accuracy'] - theirs['accuracy'])} points"
        yield (
            "control, greedy",
            percent(theirs["accuracy"]),
            gap + (", intervals overlap" if overlap(ours, theirs) else ""),
        )


def _time(record: Record) -> Iterator[Tile]:
    spent = [(phase.label, seconds) for phase in record.phases if (seconds := phase.total("time/step"))]
    if spent:
        each = ", ".join(f"{label} {duration(seconds)}" for label, seconds in spent)
        yield "training time", duration(sum(seconds for _, seconds in spent)), each


def _parted(figures: Row) -> tuple[str, str]:
    value, _, bracket = interval(figures).partition(" [")
    return value, f"[{bracket}"


def _drawing(drawn: Sequence[Html], height: int, said: str) -> Html:
    size = {"viewBox": f"0 0 {GLYPH_WIDTH} {height}", "width": GLYPH_WIDTH, "height": height}
    return element("svg", *drawn, role="img", aria_label=said, class_="glyph", **size)
