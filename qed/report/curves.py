"""Build the lines of a chart: metrics of the training steps, figures of the evaluations, and the control."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from qed.evaluation.intervals import compute_share_interval
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

# Metrics that are shown only if they ever exceed rounding errors.
HIDDEN_IF_ZERO = (
    "policy/entropy",  # of a reward model, which has none
    "grading/timeouts",
    "grading/errors",
    "grading/without_reward",
    "groups/neither",
    "clip/low",
    "clip/high",
    "kl/ref",
    "kl/old",
    "mismatch/kl",
    "sampler/logp_gap_mean",
    "sampler/logp_gap_p99",
)
ROUNDING = 1e-6
UNSMOOTHED = ("optim/lr",)  # follows a schedule, so there is no noise to average out
CONTROL_COLOUR = 2


def _read_metric(row: Row, key: str) -> float | None:
    if key != "groups/neither":
        return read_number(row.get(key))
    shares = [read_number(row.get(f"groups/{name}")) for name in ("zero_std", "all_right", "all_wrong")]
    same, right, wrong = shares
    # Rewards may differ between answers that are all right, so this difference is only a lower bound.
    return None if same is None or right is None or wrong is None else max(0.0, same - right - wrong)


def build_training_series(phases: Sequence[Phase], key: str, label: str, colour: int, dots: bool) -> Series | None:
    """Build the line of a training metric: steps as dots, their running mean as the line; None without data."""
    raw: list[Point] = []
    pieces: list[list[Point]] = []
    for phase in phases:
        own = [(float(row["step"]), value) for row in phase.rows if (value := _read_metric(row, key)) is not None]
        means = compute_running_mean([value for _, value in own], 1 if key in UNSMOOTHED else choose_window(len(own)))
        pieces += [[(step, mean) for (step, _), mean in zip(own, means, strict=True)]] if own else []
        raw += own
    if not raw or (key in HIDDEN_IF_ZERO and not any(abs(value) > ROUNDING for _, value in raw)):
        return None
    return Series(
        label, [point for piece in pieces for point in piece], colour, dots=raw if dots else (), pieces=pieces
    )


def build_held_out_series(
    record: Record, decoding: str, label: str, colour: int, task: str, band: bool
) -> Series | None:
    """Build the line of the accuracy at each evaluation, with its interval; None without evaluations."""
    measured = [(step, figures[decoding]) for step, figures in record.list_evaluations(task) if decoding in figures]
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


def build_validation_series(record: Record, key: str, label: str, colour: int) -> Series | None:
    """Build the line of a metric of the validation data, with its interval if it has one; None without data."""
    values = [(row, value) for row in record.validations if (value := read_number(row.get(key))) is not None]
    if not values:
        return None
    return Series(
        label,
        [(float(row["step"]), value) for row, value in values],
        colour,
        band=[(row["step"], row[f"{key}/ci_lo"], row[f"{key}/ci_hi"]) for row, _ in values if f"{key}/ci_hi" in row],
        marks=True,
        tips=[f"{label}, step {row['step']:,}: {format_plain(value)}" for row, value in values],
    )


def build_figure_series(
    measured: Sequence[tuple[int, Row]], decoding: str, figure: str, label: str, colour: int
) -> Series | None:
    """Build the line of a figure at each evaluation; tooltips show n, and intervals for classes. None without data."""
    values = [
        (step, figures[decoding], _read_figure(figures[decoding], figure))
        for step, figures in measured
        if decoding in figures
    ]
    present = [(step, figures, value) for step, figures, value in values if value is not None]
    points = [(float(step), value) for step, _, value in present]
    tips = [f"{label}, step {step:,}: {_format_tip(figures, figure, value)}" for step, figures, value in present]
    return Series(label, points, colour, marks=True, tips=tips) if points else None


def _format_tip(figures: Row, figure: str, value: float) -> str:
    count = figures["n"]
    if not figure.startswith("classes.") or figures.get("k", 1) > 1:
        return f"{format_plain(value)}, n = {count:,}"
    low, high = compute_share_interval(round(value * count), count)
    return f"{format_interval({'accuracy': value, 'ci_lo': low, 'ci_hi': high})}, n = {count:,}"


def _read_figure(figures: Row, name: str) -> float | None:
    """Read a figure by name; a dot accesses a nested table, such as classes.fmt1_ans1."""
    outer, _, inner = name.partition(".")
    value = figures.get(outer)
    return read_number(value.get(inner) if inner and isinstance(value, dict) else value)


def build_control_series(record: Record, control: Record, task: str) -> Series | None:
    """Build the line of the control's accuracy, with each point at the RL step of equal training time."""
    phase = next((phase for phase in record.phases if phase.is_online), None)
    measured = [(step, figures["greedy"]) for step, figures in control.list_evaluations(task) if "greedy" in figures]
    if phase is None or not measured:
        return None
    ours = _build_clock([phase])
    theirs = _build_clock(control.phases)
    placed = [(_find_step(ours, _find_time(theirs, step)), step, figures) for step, figures in measured]
    return Series(
        "control: SFT continued",
        [(at, figures["accuracy"]) for at, _, figures in placed],
        CONTROL_COLOUR,
        band=[(at, figures["ci_lo"], figures["ci_hi"]) for at, _, figures in placed],
        marks=True,
        tips=[
            f"control after {step:,} steps, {format_duration(_find_time(theirs, step))}: {format_interval(f)}"
            for _, step, f in placed
        ],
    )


def _build_clock(phases: Sequence[Phase]) -> list[Point]:
    """Return (step, training time so far) pairs, starting before the first step; if no time was logged, count steps."""
    clock: list[Point] = [(phases[0].begin, 0.0)] if phases else [(0.0, 0.0)]
    has_times = all(phase.compute_total("time/step") for phase in phases)
    for phase in phases:
        for row in phase.rows:
            clock.append((row["step"], clock[-1][1] + (read_number(row.get("time/step")) or 0.0 if has_times else 1.0)))
    return clock


def _find_time(clock: Sequence[Point], step: float) -> float:
    return clock[max(0, bisect_right([at for at, _ in clock], step) - 1)][1]


def _find_step(clock: Sequence[Point], time: float) -> float:
    index = bisect_right([elapsed for _, elapsed in clock], time)
    if index >= len(clock):
        return clock[-1][0]
    (step, start), (next_step, end) = clock[index - 1], clock[index]
    return step + (next_step - step) * (time - start) / (end - start)
