"""Render the complete page: the order of sections, the head, run facts and provenance."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from qed.report import changes, details, outcomes, pairs, seeds, story, tables
from qed.report.markup import Html, build_element
from qed.report.numbers import format_percent, read_number
from qed.report.panels import build_charts, label_runs
from qed.report.record import Phase, Record
from qed.report.stages import Comparison, ControlComparison, compare_controls, compare_stages, find_stages
from qed.report.style import STYLE
from qed.report.svg import render_figure

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
INTERVALS = (
    "Brackets are 95 % intervals over problems: Wilson's where each problem is answered once, else from the spread of "
    "the problems' means. They do not cover variance between training runs{one}. Of two figures the first is greedy."
)
EVALUATION_INTERVALS = (
    "Brackets are 95 % intervals over problems. They do not cover other prompts, other samples or other training runs."
)


def render_page(records: Sequence[Record]) -> str:
    """Render the complete file, for one run or for several overlaid."""
    title = (
        story.write_title(records[0])
        if len(records) == 1
        else f"Comparison of {len(records)} {_name_kind(records)}: {', '.join(label_runs(records))}"
    )
    head = build_element(
        "head",
        build_element("meta", charset="utf-8"),
        build_element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        build_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        build_element("meta", name="color-scheme", content="light dark"),
        build_element("title", f"{title} – qed report"),
        build_element("style", Html(STYLE)),
    )
    body = _render_run(records[0], title) if len(records) == 1 else _render_comparison(records, title)
    main = build_element("body", build_element("main", *body))
    return f"<!DOCTYPE html>\n{build_element('html', head, main, lang='en')}\n"


def _name_kind(records: Sequence[Record]) -> str:
    return "runs" if any(record.phases for record in records) else "evaluations"


def _render_run(record: Record, title: str) -> Iterator[Html]:
    yield build_element("header", build_element("h1", title), build_element("p", _format_facts(record), class_="facts"))
    comparisons = compare_stages(record)
    yield from _render_results(record, comparisons)
    if alarms := story.list_alarms(record):
        items = build_element("ul", *(build_element("li", alarm) for alarm in alarms), class_="alarms")
        yield build_element("section", build_element("h2", "Alarms"), items)
    yield from _render_curves([record])
    for task, comparison in comparisons.items():
        yield changes.render_section(comparison, task if len(record.tasks) > 1 else "")
    for task in record.extra_tasks:
        yield from _render_examples(record, task)
    for task in record.tasks:
        yield from _render_details(details.render_run(record, task), task)
    yield from _render_cost([record])
    yield _render_origin(record)


def _render_results(record: Record, comparisons: Mapping[str, Comparison]) -> Iterator[Html]:
    """Render the results: sentences, tiles and tables."""
    trouble = story.describe_trouble(record) if record.phases else None
    if trouble:
        yield build_element("p", trouble, class_="trouble")
    for task in record.tasks:
        yield build_element("p", story.write_headline(record, task), class_="headline")
    if record.phases and not record.tasks:
        yield build_element("p", _describe_unmeasured(record), class_="headline")
    controls = compare_controls(record)
    for index, task in enumerate(record.tasks):
        comparison, control = comparisons.get(task), controls.get(task)
        if index == 0:
            yield outcomes.render_tiles(record, task, comparison, control)
        yield _render_outcomes(record, task, comparison, control)
    for task in record.extra_tasks:
        yield from _render_evaluation([record], task)


def _render_comparison(records: Sequence[Record], title: str) -> Iterator[Html]:
    yield build_element("header", build_element("h1", title))
    for record, name in zip(records, label_runs(records), strict=True):
        trouble = story.describe_trouble(record) if record.phases else None
        if trouble:
            yield build_element("p", f"{name}: {trouble}", class_="trouble")
    tasks = dict.fromkeys(task for record in records for task in record.tasks)
    everything = list(dict.fromkeys(task for record in records for task in record.all_tasks))
    tests = pairs.compare_runs(records, everything)
    for task in tasks:
        yield build_element("p", _describe_spread(records, task), class_="headline")
        note = build_element("p", INTERVALS.format(one=""), class_="note")
        parts = outcomes.render_finals(records, task), note, pairs.render_tests(tests, records, task)
        yield build_element("section", build_element("h2", f"Final evaluation on {task}"), *parts)
    for task in dict.fromkeys(task for record in records for task in record.extra_tasks if task not in tasks):
        yield from _render_evaluation(records, task, pairs.render_tests(tests, records, task))
    if arms := seeds.render_seeds(records, everything):
        yield arms
    yield from _render_curves(records)
    for task in tasks:
        yield from _render_details(details.render_runs(records, task), task)
    yield from _render_cost(records)


def _render_evaluation(records: Sequence[Record], task: str, tests: Html | None = None) -> Iterator[Html]:
    """Render the evaluations of a task that was not evaluated during training, side by side for several runs."""
    if shown := details.render_runs(records, task):
        note = build_element("p", EVALUATION_INTERVALS, class_="note")
        yield build_element("section", build_element("h2", f"Evaluation on {task}"), tests, *shown, note)


def _render_details(shown: Sequence[Html], task: str) -> Iterator[Html]:
    if shown:
        note = build_element("p", EVALUATION_INTERVALS, class_="note")
        yield build_element("section", build_element("h2", f"Every figure on {task}"), note, *shown)


def _render_examples(record: Record, task: str) -> Iterator[Html]:
    step, figures = record.list_evaluations(task)[-1]
    decoding = next(iter(figures))
    shown = list(changes.render_examples(record.read_rows(step, task, decoding)))
    if shown:
        lead = build_element("p", "The first right and the first wrong ones:", class_="lead")
        yield build_element("section", build_element("h2", f"Answers to {task}"), lead, *shown)


def _format_facts(record: Record) -> str:
    """Format model, tasks, seed and date, if the run folder contains them."""
    dates = [event["time"] for event in record.events if read_number(event.get("time")) is not None]
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(dates[-1])) if dates else None
    ending = record.ending["event"] if record.ending else "last event"
    facts = {
        "model": record.get_setting("model.name"),
        "evaluated on": ", ".join(record.all_tasks) or None,
        "seed": record.get_setting("run.seed"),
        ending: date,
        "qed": record.environment.get("qed"),
    }
    return " · ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _describe_unmeasured(record: Record) -> str:
    """Describe a run without evaluations by its validation data and its training rewards."""
    content = "No held-out evaluation was made, so this run cannot say whether the model got better."
    content += story.describe_validation(record)
    for phase in record.phases:
        rewards = [value for row in phase.rows if (value := read_number(row.get("reward/mean"))) is not None]
        part = max(1, len(rewards) // 10)
        if len(rewards) > 1:
            content += (
                f" In training with {phase.label} the mean reward was {fmean(rewards[:part]):.3f} in the first "
                f"{part:,} and {fmean(rewards[-part:]):.3f} in the last {part:,} of {len(rewards):,} steps."
            )
    return content


def _render_outcomes(
    record: Record, task: str, comparison: Comparison | None, control: ControlComparison | None
) -> Html:
    sentences = story.describe_control(control) if control else []
    if comparison is None and len(find_stages(record, task)) > 1:
        sentences.append(f"Before and after: {story.UNPAIRED}")
    steps = story.describe_worked_steps(comparison) if comparison else None
    return build_element(
        "section",
        build_element("h2", f"Before and after on {task}"),
        outcomes.render_outcomes(record, task),
        *(build_element("p", sentence) for sentence in [*sentences, *([steps] if steps else [])]),
        build_element("p", INTERVALS.format(one=": this is one run with one seed"), class_="note"),
    )


def _render_curves(records: Sequence[Record]) -> Iterator[Html]:
    charts = build_charts(records)
    if charts and any(record.phases for record in records):
        alone = "Faint dots are single steps, lines their running means"
        overlaid = "Lines are running means over steps, one line a run with the first metric of a panel"
        how = f"{overlaid if records[1:] else alone}; points are evaluations. Hover over a curve to read its values."
        if not records[1:]:
            how = " ".join([how, *filter(None, map(_describe_answers, records[0].phases))])
        note = build_element("p", how, class_="note")
        grid = build_element("div", *(render_figure(chart) for chart in charts), class_="charts")
        yield build_element("section", build_element("h2", "How it went, step by step"), note, grid)


def _describe_answers(phase: Phase) -> str:
    """Describe how many answers a step samples; empty for a phase that samples none."""
    lengths = [(read_number(row.get("length/total")), read_number(row.get("length/mean"))) for row in phase.rows]
    counts = [round(total / mean) for total, mean in lengths if total and mean]
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f"A step of {phase.label} samples {f'{low:,}' if low == high else f'{low:,} to {high:,}'} answers."


def _render_cost(records: Sequence[Record]) -> Iterator[Html]:
    if any(record.phases for record in records):
        yield build_element("section", build_element("h2", "What it cost"), tables.render_costs(records))


def _render_origin(record: Record) -> Html:
    """Render command, settings, environment and events, for reproducibility."""
    settings = tables.render_settings(record)
    events = {
        f"{number}. {event.get('event')}": ", ".join(
            f"{k}: {v}" for k, v in event.items() if k not in ("event", "time")
        )
        or "–"
        for number, event in enumerate(record.events, 1)
    }
    left = [build_element("h3", "Settings that differ from their defaults"), settings] if settings else []
    right = (
        [build_element("h3", "Environment"), tables.render_definitions(record.environment)]
        if record.environment
        else []
    )
    right += [build_element("h3", "Events"), tables.render_definitions(events)] if events else []
    columns = [build_element("div", *parts) for parts in (left, right) if parts]
    command = build_element("pre", record.command, class_="command") if record.command else None
    return build_element(
        "section", build_element("h2", "How it was made"), command, build_element("div", *columns, class_="made")
    )


def _describe_spread(records: Sequence[Record], task: str) -> str:
    """Describe the final accuracies of the runs: lowest, highest and mean."""
    ends = [(find_stages(record, task)[-1:], name) for record, name in zip(records, label_runs(records), strict=True)]
    results = [(last[0].greedy["accuracy"], name) for last, name in ends if last]
    if not results:
        return f"Greedy accuracy on {task} was not measured."
    if len(results) == 1:
        value, name = results[0]
        share = format_percent(value)
        return f"Final greedy accuracy on held-out problems of {task}, measured in one run: {share} ({name})."
    low, high = min(results), max(results)
    count = f"{len(results)} of {len(records)} runs" if len(results) < len(records) else f"{len(records)} runs"
    return (
        f"Final greedy accuracy of {count} on held-out problems of {task}: from {format_percent(low[0])} ({low[1]}) to "
        f"{format_percent(high[0])} ({high[1]}), {format_percent(fmean(value for value, _ in results))} on average."
    )
