"""Choose the charts of a report: every panel that has data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from qed.report.curves import (
    CONTROL_COLOUR,
    build_control_series,
    build_figure_series,
    build_held_out_series,
    build_training_series,
    build_validation_series,
)
from qed.report.panel_list import LENGTH, PANELS, SYSTEM_PANELS, VALIDATED, VALIDATION_PANELS, Panel
from qed.report.record import DECODINGS, VALIDATION, Phase, Record
from qed.report.scales import Span
from qed.report.svg import HEIGHT, Chart, Series

PART = re.compile(r"reward/(.+)/mean")
MAX_BANDS = 3  # with more runs, interval bands are not drawn
WIDE_HEIGHT = 300


def build_charts(records: Sequence[Record]) -> list[Chart]:
    """Build all charts of one run, or of several overlaid."""
    tasks = list(dict.fromkeys(task for record in records for task in record.tasks))
    followed = _choose_followed_task(records, tasks[0] if tasks else VALIDATION)
    charts: list[Chart | None] = []
    for task in tasks:
        charts += [
            build_accuracy_chart(records, task, decoding, len(tasks) > 1)
            for decoding in (DECODINGS if records[1:] else ("greedy",))
        ]
    charts += [_build_validation_chart(records, decoding) for decoding in (DECODINGS if records[1:] else ("greedy",))]
    panels = (*VALIDATION_PANELS, LENGTH, _build_reward_panel(records), *PANELS)
    charts += [build_panel_chart(records, panel, followed) for panel in panels]
    charts += [*build_loss_charts(records), *(build_panel_chart(records, panel, followed) for panel in SYSTEM_PANELS)]
    drawn = [chart for chart in charts if chart is not None]
    if len(drawn) > 1 and drawn[0].wide and not drawn[1].wide:
        drawn[1] = replace(drawn[1], height=drawn[0].height)  # the two are side by side
    return drawn


def _choose_followed_task(records: Sequence[Record], task: str) -> str:
    """Return the task or the validation part, whichever was evaluated more often, for curves over steps."""
    counts = {part: max(len(record.list_evaluations(part)) for record in records) for part in (task, VALIDATION)}
    return VALIDATION if counts[VALIDATION] > counts[task] else task


def _build_validation_chart(records: Sequence[Record], decoding: str) -> Chart | None:
    """Build the chart of validation accuracy, with a note that it is not a held-out result."""
    chart = build_accuracy_chart(records, VALIDATION, decoding, named=False)
    if chart is None:
        return None
    best_step = records[0].best_step if len(records) == 1 else None
    choice = f" It chose step {best_step:,}." if best_step is not None else ""
    title = f"Validation accuracy{'' if len(records) == 1 else f', {decoding}'}"
    return replace(chart, title=title, note=f"{VALIDATED}{choice}", wide=False, height=HEIGHT)


def build_accuracy_chart(records: Sequence[Record], task: str, decoding: str, named: bool) -> Chart | None:
    """Build the chart of held-out accuracy: both decodings and the control of one run, one decoding of several runs.

    `named` adds the task to the title.
    """
    alone = len(records) == 1
    curves = [
        (record, name, name if alone else label, index)
        for first, (record, label) in enumerate(zip(records, label_runs(records), strict=True))
        for index, name in enumerate(DECODINGS if alone else (decoding,), first)
    ]
    lines = [build_held_out_series(*curve, task, len(records) <= MAX_BANDS) for curve in curves]
    lines += [build_control_series(records[0], records[0].control, task)] if alone and records[0].control else []
    series = [line for line in lines if line is not None]
    if not series:
        return None
    spans = build_spans(records, series)
    notes = ["Bands are 95 % intervals."] if any(line.band for line in series) else []
    notes += ["Each phase has its own step scale."] if len(spans) > 1 else []
    if any(line.colour == CONTROL_COLOUR and alone for line in series):
        notes.append(
            "The control is aligned by time: each step shows what SFT alone reached in the same training time."
        )
    evaluations = [figures for record in records for _, figures in record.list_evaluations(task)]
    counts = {row.get("n") for figures in evaluations for row in figures.values()}
    return Chart(
        f"Held-out accuracy{'' if alone else f', {decoding}'}{f', {task}' if named else ''}",
        "share of problems right",
        series,
        spans,
        share=True,
        note=" ".join(notes),
        wide=decoding == "greedy",
        height=WIDE_HEIGHT if decoding == "greedy" else HEIGHT,
        size=f"n = {counts.pop():,}" if len(counts) == 1 else "",
    )


def build_panel_chart(records: Sequence[Record], panel: Panel, task: str) -> Chart | None:
    """Build the chart of a panel; for several runs, only its first metric with one line per run. None without data."""
    rows = (row for record in records for phase in record.phases for row in phase.rows)
    if panel.needs and not any(panel.needs in row for row in rows):
        return None
    alone = len(records) == 1
    series = [line for line in _build_lines(records, panel, task) if line is not None]
    if not series:
        return None
    first = "" if alone or not panel.held_out or panel.trained else _name_part(panel.held_out[0][0], task)
    suffix = f": {first}" if first else ""
    note, spans = panel.note if panel.validated else _name_part(panel.note, task), build_spans(records, series)
    return Chart(panel.title + suffix, panel.unit, series, spans, panel.share, panel.log, note=note)


def _build_lines(records: Sequence[Record], panel: Panel, task: str) -> Iterator[Series | None]:
    """Build a line per metric of one run, or one line per run for several: a training metric if the panel has any."""
    if len(records) == 1:
        (record,) = records
        for colour, (label, key) in enumerate(panel.trained):
            yield build_training_series(record.phases, key, label, colour, True)
        for colour, (label, key) in enumerate(panel.validated, len(panel.trained)):
            yield build_validation_series(record, key, label, colour)
        for colour, (label, decoding, figure) in enumerate(panel.held_out, len(panel.trained)):
            yield build_figure_series(record.list_evaluations(task), decoding, figure, _name_part(label, task), colour)
        return
    for colour, (record, name) in enumerate(zip(records, label_runs(records), strict=True)):
        if panel.trained:
            yield build_training_series(record.phases, panel.trained[0][1], name, colour, False)
        elif panel.validated:
            yield build_validation_series(record, panel.validated[0][1], name, colour)
        else:
            _, decoding, figure = panel.held_out[0]
            yield build_figure_series(record.list_evaluations(task), decoding, figure, name, colour)


def _name_part(text: str, task: str) -> str:
    """Return a text about held-out problems, naming the validation part if they are from it."""
    return text.replace("held-out", "validation") if task == VALIDATION else text


def build_loss_charts(records: Sequence[Record]) -> Iterator[Chart | None]:
    """Build a chart for each phase: the losses of SFT and of RL are not comparable."""
    alone = len(records) == 1
    for name in dict.fromkeys(phase.name for record in records for phase in record.phases):
        lines, online, title = [], False, name
        for index, (record, label) in enumerate(zip(records, label_runs(records), strict=True)):
            own = [phase for phase in record.phases if phase.name == name]
            online = online or any(phase.is_online for phase in own)
            title = own[0].label if own else title
            lines.append(build_training_series(own, "train/loss", "loss" if alone else label, index, alone))
        series = [line for line in lines if line is not None]
        note = "Only its gradient matters: its value does not measure progress." if online else ""
        if series:
            yield Chart(
                f"Loss of {title}", "loss", series, build_spans(records, series), log=True, zero=False, note=note
            )


def label_runs(records: Sequence[Record]) -> list[str]:
    """Return the runs' names; if two are the same, the paths of all."""
    names = [record.name for record in records]
    return names if len(set(names)) == len(names) else [str(record.folder) for record in records]


def build_spans(records: Sequence[Record], series: Sequence[Series]) -> list[Span]:
    """Return the phases that a chart covers, or one unlabelled span if the runs have different phases."""
    steps = [step for line in series for step, _ in (*line.points, *line.dots)]
    first, last = min(steps), max(steps)
    phases: dict[str, list[Phase]] = {}
    for record in records:
        for phase in record.phases:
            phases.setdefault(phase.name, []).append(phase)
    starts = [{phase.begin for phase in same} for same in phases.values()]
    # Phases with different names and the same first step are parallel arms, not consecutive phases.
    shared = phases and all(len(begins) == 1 for begins in starts) and len(set.union(*starts)) == len(starts)
    candidates = [_build_span(same) for same in phases.values()] if shared else []
    covered = [
        span
        for span in candidates
        if any(span.first < step <= span.last or step == first == span.first for step in steps)
    ]
    if not covered or first < covered[0].first or last > covered[-1].last:
        return [Span("", first, last)]
    return covered


def _build_span(phases: Sequence[Phase]) -> Span:
    """Build the span of a phase; its width is proportional to its training time."""
    seconds = phases[0].compute_total("time/step")
    last = max(phase.last for phase in phases)
    return Span(phases[0].label, phases[0].begin, last, seconds or float(last - phases[0].begin))


def _build_reward_panel(records: Sequence[Record]) -> Panel:
    """Build the panel of the reward and its parts."""
    rows = [row for record in records for phase in record.phases for row in phase.rows]
    keys = sorted({key for row in rows for key in row if PART.fullmatch(key)})
    parts = tuple((key.removeprefix("reward/").removesuffix("/mean"), key) for key in keys)
    return Panel("Reward in training", "mean of a step's answers", (("reward", "reward/mean"), *parts))
