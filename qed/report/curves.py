"""The lines of a chart: measures of the training steps, figures of the evaluations, and the control beside them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from qed.evaluation.intervals import compute_wilson_interval
from qed.report.numbers import (
    Point,
    choose_window,
    compute_running_mean,
    format_duration,
    format_interval,
    format_plain,
    read_number,
)
from qed.report.record import Phase, Record
from qed.report.svg import Series
from qed.runs.run import Row

# Of interest only where they are ever more than rounding makes them.
IDLE = (
    "grading/timeouts",
    "grading/errors",
    "grading/without_reward",
    "groups/neither",
    "clip/low",
    "clip/high",
    "kl/ref",
    "kl/old",
    "mismatch/kl",
)
ROUNDING = 1e-6
EXACT = ("optim/lr",)  # set, not measured: a mean would only blur it
CONTROL_COLOUR = 2


def _value(row: Row, key: str) -> float | None:
    if key != "groups/neither":
        return read_number(row.get(key))
    parts = [read_number(row.get(f"groups/{name}")) for name in ("zero_std", "all_right", "all_wrong")]
    same, right, wrong = parts
    # Rewards may differ among answers that are all right, so the rest can only be bounded from below.
    return None if same is None or right is None or wrong is None else max(0.0, same - right - wrong)


def list_trained_points(phases: Sequence[Phase], key: str, label: str, colour: int, dots: bool) -> Series | None:
    """A measure of the training steps: the steps themselves as dots, their running mean as the line."""
    raw: list[Point] = []
    pieces: list[list[Point]] = []
    for phase in phases:
        own = [(float(row["step"]), value) for row in phase.rows if (value := _value(row, key)) is not None]
        means = compute_running_mean([value for _, value in own], 1 if key in EXACT else choose_window(len(own)))
        pieces += [[(step, mean) for (step, _), mean in zip(own, means, strict=True)]] if own else []
        raw += own
    if not raw or (key in IDLE and not any(abs(value) > ROUNDING for _, value in raw)):
        return None
    return Series(
        label, [point for piece in pieces for point in piece], colour, dots=raw if dots else (), pieces=pieces
    )


def list_held_out_points(
    record: Record, decoding: str, label: str, colour: int, task: str, band: bool
) -> Series | None:
    """Accuracy at each evaluation, with its interval."""
    measured = [(step, figures[decoding]) for step, figures in record.measured(task) if decoding in figures]
    if not measured:
        return None
    return Series(
        label,
        [(step, figures["accuracy"]) for step, figures in measured],
        colour,
        band=[(step, figures["ci_lo"], figures["ci_hi"]) for step, figures in measured] if band else (),
        marks=True,
        tips=[
            f"{label}, step {step:,}: {format_interval(figures)}, n = {figures['n']:,}" for step, figures in measured
        ],
    )


def read_figure(
    measured: Sequence[tuple[int, Row]], decoding: str, figure: str, label: str, colour: int
) -> Series | None:
    """A figure at each evaluation, with how many problems it is of; a class also with its interval."""
    found = [
        (step, figures[decoding], _figure(figures[decoding], figure))
        for step, figures in measured
        if decoding in figures
    ]
    known = [(step, figures, value) for step, figures, value in found if value is not None]
    points = [(float(step), value) for step, _, value in known]
    tips = [f"{label}, step {step:,}: {_format_tip(figures, figure, value)}" for step, figures, value in known]
    return Series(label, points, colour, marks=True, tips=tips) if points else None


def _format_tip(figures: Row, figure: str, value: float) -> str:
    count = figures["n"]
    if not figure.startswith("classes.") or figures.get("k", 1) > 1:
        return f"{format_plain(value)}, n = {count:,}"
    low, high = compute_wilson_interval(round(value * count), count)
    return f"{format_interval({'accuracy': value, 'ci_lo': low, 'ci_hi': high})}, n = {count:,}"


def _figure(figures: Row, name: str) -> float | None:
    """A figure by its name; a dot goes into a figure that holds several, such as classes.fmt1_ans1."""
    outer, _, inner = name.partition(".")
    found = figures.get(outer)
    return read_number(found.get(inner) if inner and isinstance(found, dict) else found)


def align_times(record: Record, control: Record, task: str) -> Series | None:
    """The control's accuracy, placed at the RL step that had taken the same training time."""
    phase = next((phase for phase in record.phases if phase.online), None)
    measured = [(step, figures["greedy"]) for step, figures in control.measured(task) if "greedy" in figures]
    if phase is None or not measured:
        return None
    ours = _build_clock([phase])
    theirs = _build_clock(control.phases)
    placed = [(_step_at(ours, _time_at(theirs, step)), step, figures) for step, figures in measured]
    return Series(
        "control: SFT continued",
        [(at, figures["accuracy"]) for at, _, figures in placed],
        CONTROL_COLOUR,
        band=[(at, figures["ci_lo"], figures["ci_hi"]) for at, _, figures in placed],
        marks=True,
        tips=[
            f"control after {step:,} steps, {format_duration(_time_at(theirs, step))}: {format_interval(f)}"
            for _, step, f in placed
        ],
    )


def _build_clock(phases: Sequence[Phase]) -> list[Point]:
    """The training time at each step, from the step before the first; in steps where no time was taken."""
    clock: list[Point] = [(phases[0].begin, 0.0)] if phases else [(0.0, 0.0)]
    timed = all(phase.total("time/step") for phase in phases)
    for phase in phases:
        for row in phase.rows:
            clock.append((row["step"], clock[-1][1] + (read_number(row.get("time/step")) or 0.0 if timed else 1.0)))
    return clock


def _time_at(clock: Sequence[Point], step: float) -> float:
    return clock[max(0, bisect_right([at for at, _ in clock], step) - 1)][1]


def _step_at(clock: Sequence[Point], time: float) -> float:
    index = bisect_right([spent for _, spent in clock], time)
    if index >= len(clock):
        return clock[-1][0]
    (before, begun), (after, ended) = clock[index - 1], clock[index]
    return before + (after - before) * (time - begun) / (ended - begun)
