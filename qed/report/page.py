"""The page: its order, its head, and the facts at its top and bottom."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import fmean

from qed.report import changes, details, outcomes, pairs, story, tables
from qed.report.markup import Html, build_element
from qed.report.numbers import format_percent, read_number
from qed.report.panels import build_charts, label_runs
from qed.report.record import Phase, Record
from qed.report.stages import Arms, Comparison, build_arms, compare_stages, find_stages
from qed.report.style import STYLE
from qed.report.svg import render_figure

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
INTERVALS = (
    "Brackets are 95 % intervals over problems: Wilson's where each problem is answered once, else from the spread of "
    "the problems' means. They do not cover the luck of a training run{one}. Of two figures the first is greedy."
)
ALONE = (
    "Brackets are 95 % intervals over problems. They do not cover another prompt, other draws or another training run."
)


def render_page(records: Sequence[Record]) -> str:
    """The whole file."""
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
    body = _render_one(records[0], title) if len(records) == 1 else _render_several(records, title)
    main = build_element("body", build_element("main", *body))
    return f"<!DOCTYPE html>\n{build_element('html', head, main, lang='en')}\n"


def _name_kind(records: Sequence[Record]) -> str:
    return "runs" if any(record.phases for record in records) else "evaluations"


def _render_one(record: Record, title: str) -> Iterator[Html]:
    yield build_element("header", build_element("h1", title), build_element("p", _format_facts(record), class_="facts"))
    yield from _render_measured(record)
    if alarming := story.list_alarms(record):
        told = build_element("ul", *(build_element("li", one) for one in alarming), class_="alarms")
        yield build_element("section", build_element("h2", "Alarms"), told)
    yield from _render_curves([record])
    for task in record.tasks:
        if found := compare_stages(record, task):
            yield changes.render_section(found, task if len(record.tasks) > 1 else "")
    for task in record.others:
        yield from _render_examples(record, task)
    for task in record.tasks:
        yield from _render_in_full(details.render_run(record, task), task)
    yield from _render_cost([record])
    yield _render_origin(record)


def _render_measured(record: Record) -> Iterator[Html]:
    """What came out: in sentences, in large figures, and as tables."""
    problem = story.describe_trouble(record) if record.phases else None
    if problem:
        yield build_element("p", problem, class_="trouble")
    for task in record.tasks:
        yield build_element("p", story.write_headline(record, task), class_="headline")
    if record.phases and not record.tasks:
        yield build_element("p", _describe_unmeasured(record), class_="headline")
    for place, task in enumerate(record.tasks):
        found, against = compare_stages(record, task), build_arms(record, task)
        if not place:
            yield outcomes.render_tiles(record, task, found, against)
        yield _render_outcomes(record, task, found, against)
    for task in record.others:
        yield from _render_alone([record], task)


def _render_several(records: Sequence[Record], title: str) -> Iterator[Html]:
    yield build_element("header", build_element("h1", title))
    for record, name in zip(records, label_runs(records), strict=True):
        problem = story.describe_trouble(record) if record.phases else None
        if problem:
            yield build_element("p", f"{name}: {problem}", class_="trouble")
    trained = dict.fromkeys(task for record in records for task in record.tasks)
    for task in trained:
        yield build_element("p", _describe_spread(records, task), class_="headline")
        note = build_element("p", INTERVALS.format(one=""), class_="note")
        drawn = outcomes.render_finals(records, task), note, pairs.render_tests(records, task)
        yield build_element("section", build_element("h2", f"Final evaluation on {task}"), *drawn)
    for task in dict.fromkeys(task for record in records for task in record.others if task not in trained):
        yield from _render_alone(records, task)
    yield from _render_curves(records)
    for task in trained:
        yield from _render_in_full(details.render_runs(records, task), task)
    yield from _render_cost(records)


def _render_alone(records: Sequence[Record], task: str) -> Iterator[Html]:
    """A task that training has not measured: what its evaluations say, of several runs side by side."""
    told, tests = details.render_runs(records, task), pairs.render_tests(records, task)
    if told:
        note = build_element("p", ALONE, class_="note")
        yield build_element("section", build_element("h2", f"Evaluation on {task}"), tests, *told, note)


def _render_in_full(told: Sequence[Html], task: str) -> Iterator[Html]:
    if told:
        note = build_element("p", ALONE, class_="note")
        yield build_element("section", build_element("h2", f"Every figure on {task}"), note, *told)


def _render_examples(record: Record, task: str) -> Iterator[Html]:
    step, figures = record.measured(task)[-1]
    decoding = next(iter(figures))
    shown = list(changes.render_examples(record.rows(step, task, decoding)))
    if shown:
        lead = build_element("p", "The first right and the first wrong ones:", class_="lead")
        yield build_element("section", build_element("h2", f"Answers to {task}"), lead, *shown)


def _format_facts(record: Record) -> str:
    """Model, tasks, seed and date, as far as the run's folder tells."""
    dates = [event["time"] for event in record.events if read_number(event.get("time")) is not None]
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(dates[-1])) if dates else None
    ending = record.ending["event"] if record.ending else "last heard of"
    known = {
        "model": record.setting("model.name"),
        "evaluated on": ", ".join(record.every_task) or None,
        "seed": record.setting("run.seed"),
        ending: date,
        "qed": record.environment.get("qed"),
    }
    return " · ".join(f"{name} {value}" for name, value in known.items() if value is not None)


def _describe_unmeasured(record: Record) -> str:
    """What can be said of a run without evaluations: only what its own training saw."""
    told = "No held-out evaluation was made, so this run cannot say whether the policy got better."
    for phase in record.phases:
        rewards = [value for row in phase.rows if (value := read_number(row.get("reward/mean"))) is not None]
        part = max(1, len(rewards) // 10)
        if len(rewards) > 1:
            told += (
                f" In training with {phase.label} the mean reward was {fmean(rewards[:part]):.3f} in the first "
                f"{part:,} and {fmean(rewards[-part:]):.3f} in the last {part:,} of {len(rewards):,} steps."
            )
    return told


def _render_outcomes(record: Record, task: str, found: Comparison | None, against: Arms | None) -> Html:
    said = story.describe_control(against) if against else []
    steps = story.describe_worked_steps(found) if found else None
    return build_element(
        "section",
        build_element("h2", f"Before and after on {task}"),
        outcomes.render_outcomes(record, task),
        *(build_element("p", sentence) for sentence in [*said, *([steps] if steps else [])]),
        build_element("p", INTERVALS.format(one=": this is one run with one seed"), class_="note"),
    )


def _render_curves(records: Sequence[Record]) -> Iterator[Html]:
    drawn = build_charts(records)
    if drawn and any(record.phases for record in records):
        alone = "Faint dots are single steps, lines their running means"
        overlaid = "Lines are running means over steps, of each run the first measure of a panel"
        how = f"{overlaid if records[1:] else alone}; points are evaluations. A pointer held over a curve reads it out."
        if not records[1:]:
            how = " ".join([how, *filter(None, map(_describe_answers, records[0].phases))])
        note = build_element("p", how, class_="note")
        grid = build_element("div", *(render_figure(chart) for chart in drawn), class_="charts")
        yield build_element("section", build_element("h2", "How it went, step by step"), note, grid)


def _describe_answers(phase: Phase) -> str:
    """Of how many answers a step's figures are; empty where the phase asked for none."""
    lengths = [(read_number(row.get("length/total")), read_number(row.get("length/mean"))) for row in phase.rows]
    counts = [round(total / mean) for total, mean in lengths if total and mean]
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f"A step of {phase.label} has {f'{low:,}' if low == high else f'{low:,} to {high:,}'} answers of its own."


def _render_cost(records: Sequence[Record]) -> Iterator[Html]:
    if any(record.phases for record in records):
        yield build_element("section", build_element("h2", "What it cost"), tables.render_costs(records))


def _render_origin(record: Record) -> Html:
    """What the run stands on, for whoever repeats it."""
    given = tables.render_settings(record)
    events = {
        f"{place}. {event.get('event')}": ", ".join(f"{k}: {v}" for k, v in event.items() if k not in ("event", "time"))
        or "–"
        for place, event in enumerate(record.events, 1)
    }
    left = [build_element("h3", "Settings that differ from their defaults"), given] if given else []
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
    """What the runs reached, from the lowest to the highest."""
    ends = [(find_stages(record, task)[-1:], name) for record, name in zip(records, label_runs(records), strict=True)]
    found = [(last[0].greedy["accuracy"], name) for last, name in ends if last]
    if not found:
        return f"Greedy accuracy on {task} was not measured."
    if len(found) == 1:
        value, name = found[0]
        share = format_percent(value)
        return f"Final greedy accuracy on held-out problems of {task}, measured in one run: {share} ({name})."
    low, high = min(found), max(found)
    count = f"{len(found)} of {len(records)} runs" if len(found) < len(records) else f"{len(records)} runs"
    return (
        f"Final greedy accuracy of {count} on held-out problems of {task}: from {format_percent(low[0])} ({low[1]}) to "
        f"{format_percent(high[0])} ({high[1]}), {format_percent(fmean(value for value, _ in found))} in the mean."
    )
