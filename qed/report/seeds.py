"""Arms of a report with several runs: runs that differ only in their seed, compared over problems and seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qed.evaluation.arms import ArmsTest, compare_arms
from qed.evaluation.intervals import adjust_holm
from qed.report.markup import Html, build_element, build_table, join_html
from qed.report.numbers import format_p_value, format_percent, format_point_bounds, format_points
from qed.report.panels import label_runs
from qed.report.record import Record
from qed.report.settings_file import flatten_settings

# The seed, and settings that only name a run or say where it is recorded: runs that differ only in these are one arm.
NAMING = frozenset(
    f"run.{name}" for name in ("seed", "out", "name", "group", "tags", "project", "entity", "trackers", "threads")
)
COLUMNS = ("", "first", "other", "difference in points", "p", "p (Holm)", "n")
NOTE = (
    "Runs that differ in their seed alone are one arm. Brackets are 95 % intervals over problems and seeds together. "
    "p (Holm) is adjusted for all tests of this section."
)


@dataclass(frozen=True)
class Seeds:
    """An arm: its runs, which differ only in their seed."""

    label: str
    records: list[Record]


def group_seeds(records: Sequence[Record]) -> list[Seeds]:
    """Group runs that differ only in their seed, in the order of the runs; a run without settings is its own group."""
    groups: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        kept = sorted((key, str(value)) for key, value in flatten_settings(record.settings) if key not in NAMING)
        name = json.dumps(kept, default=str) if kept else str(number)
        groups.setdefault(name, []).append(number)
    labels = label_runs(records)
    return [
        Seeds(_label([labels[number] for number in own]), [records[number] for number in own])
        for own in groups.values()
    ]


def render_seeds(records: Sequence[Record], tasks: Sequence[str]) -> Html | None:
    """Render the tests of each arm against the first one; None unless there are two arms, and one of several runs."""
    arms = group_seeds(records)
    if len(arms) < 2 or all(len(arm.records) == 1 for arm in arms):
        return None
    tests = list(_compare(arms, tasks))
    if not tests:
        return None
    adjusted = adjust_holm([test.p_value for _, _, test in tests])
    rows = [
        (join_html(label, build_element("small", what)), _build_cells(test, p_holm))
        for (label, what, test), p_holm in zip(tests, adjusted, strict=True)
    ]
    caption = f"All seeds of an arm against {arms[0].label}"
    table = build_table(COLUMNS, rows, caption, "stack")
    return build_element(
        "section", build_element("h2", "Seeds together"), table, build_element("p", NOTE, class_="note")
    )


def _compare(arms: Sequence[Seeds], tasks: Sequence[str]) -> Iterator[tuple[str, str, ArmsTest]]:
    """Yield the label of an arm, the task with its decoding, and the test of the last evaluations."""
    for task in tasks:
        first, *others = [_list_last_evaluations(arm, task) for arm in arms]
        for arm, other in zip(arms[1:], others, strict=True):
            if not first or not other:
                continue
            decodings = [figures for _, _, figures in (*first, *other)]
            for decoding in [name for name in decodings[0] if all(name in figures for figures in decodings)]:
                before, after = (
                    [record.read_rows(step, task, decoding) for record, step, _ in own] for own in (first, other)
                )
                if test := compare_arms(before, after):
                    yield arm.label, f"{task}, {decoding} answers", test


def _list_last_evaluations(arm: Seeds, task: str) -> list[tuple[Record, int, dict[str, Any]]]:
    """Return the runs of an arm, each with the step and the figures of its last evaluation; empty if one has none."""
    found = [(record, *last) for record in arm.records for last in record.list_evaluations(task)[-1:]]
    return found if len(found) == len(arm.records) else []


def _build_cells(test: ArmsTest, p_holm: float | None) -> list[object]:
    bounds = format_point_bounds(test.ci_lo, test.ci_hi)
    means = zip((test.before, test.after), test.runs, strict=True)
    return [
        *(
            join_html(format_percent(mean), build_element("small", ", ".join(map(format_percent, own))))
            for mean, own in means
        ),
        join_html(build_element("b", format_points(test.difference)), build_element("small", bounds)),
        join_html(format_p_value(test.p_value), build_element("small", test.note) if test.note else None),
        format_p_value(p_holm),
        f"{test.n:,}",
    ]


def _label(names: Sequence[str]) -> str:
    more = len(names) - 1
    return f"{names[0]} and {more} more seed{'' if more == 1 else 's'}" if more else names[0]
