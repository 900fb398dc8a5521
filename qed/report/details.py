"""Evaluations in full, side by side: every figure with its interval and how many problems or answers it is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qed.report.estimates import CLASSES, Bounds, compute_bounds
from qed.report.markup import Html, build_element, build_table, join_html
from qed.report.numbers import MINUS, SPACE, format_decimal, format_interval, format_percent, read_number
from qed.report.panels import label_runs
from qed.report.record import Record
from qed.report.stages import find_control_stage, find_stages
from qed.runs.run import Row

WAYS = {"strict": "answer found strictly", "flexible": "answer found anywhere", "string": "equal as a string"}
SHARES = {
    "format": "format kept",
    "truncated_frac": "cut off",
    "no_answer_frac": "without an answer",
    "reasoning_frac": "with a thought",
}
LENGTHS = {
    "mean_tokens": "tokens of an answer",
    "right_tokens": "tokens of a right answer",
    "wrong_tokens": "tokens of a wrong answer",
    "reasoning_chars": "characters of a thought",
}
KINDS = ("subject", "level", "source")
MOST_KINDS = 60
NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """An evaluation in a table: how it is called, its figures, and its answers' intervals where these were kept."""

    title: str
    figures: Row
    bounds: dict[str, Bounds]


def render_run(record: Record, task: str) -> list[Html]:
    """The stages of a run side by side, the control among them: a table for each way in which answers were drawn."""
    found = [(stage.label, stage.figures, record, stage.step) for stage in find_stages(record, task)]
    if (last := find_control_stage(record, task)) and record.control:
        found.append(("control: SFT continued", last.figures, record.control, last.step))
    return _render_details(found, task)


def render_runs(records: Sequence[Record], task: str) -> list[Html]:
    """The last evaluation of each run; of one folder that was evaluated alone the first one too."""
    found: list[tuple[str, Row, Record, int]] = []
    for record, name in zip(records, label_runs(records), strict=True):
        measured = record.measured(task)
        alone = len(records) == 1 and len(measured) > 1
        if alone:
            found.append((f"step {measured[0][0]:,}", measured[0][1], record, measured[0][0]))
        found += [(f"step {s:,}" if alone else name, figures, record, s) for s, figures in measured[-1:]]
    return _render_details(found, task)


def _render_details(found: Sequence[tuple[str, Row, Record, int]], task: str) -> list[Html]:
    """The tables; none where nothing beyond accuracy was measured."""
    parts: list[Html] = []
    for decoding in dict.fromkeys(name for _, figures, _, _ in found for name in figures):
        columns = [
            Column(title, figures[decoding], compute_bounds(record.rows(step, task, decoding)))
            for title, figures, record, step in found
            if decoding in figures
        ]
        if any("accuracy_by" in column.figures for column in columns):
            parts += [_render_table(columns, decoding), *_kinds(columns, decoding)]
    return parts


def _render_table(columns: Sequence[Column], decoding: str) -> Html:
    names = ("", *(column.title for column in columns))
    rows = [row for row in _rows(columns) if any(cell != NOTHING for cell in row[1])]
    return build_table(names, rows, caption=_label_rows(decoding), kind=_look(columns))


def _look(columns: Sequence[Column]) -> str:
    """A single column fits a phone as it is."""
    return "stack figures" if len(columns) > 1 else "figures"


def _label_rows(decoding: str) -> str:
    return "The responses" if decoding == "responses" else f"{decoding.capitalize()} answers"


def _rows(columns: Sequence[Column]) -> Iterator[tuple[str, list[object]]]:
    """A row for each figure that any of the columns has."""
    every = [column.figures for column in columns]
    yield "problems × answers", [f"{figures['n']:,} × {figures.get('k', 1):,}" for figures in every]
    most = max(figures.get("k", 1) for figures in every)
    yield (f"right, avg@{most}" if most > 1 else "right"), [format_interval(figures) for figures in every]
    for name, label in WAYS.items():
        yield label, [_format_bounds(figures.get("accuracy_by", {}).get(name)) for figures in every]
    for kind, label in (("pass", "one of {k} right, pass@{k}"), ("maj", "vote of {k} right, maj@{k}")):
        for k in sorted({int(k) for figures in every for k in figures.get(kind, {})} - {1}):
            yield label.format(k=k), [_format_bounds(figures.get(kind, {}).get(str(k))) for figures in every]
    for name, label in CLASSES.items():
        yield label, [_mean(column, name, _class(column.figures, name), format_percent) for column in columns]
    for name, label in SHARES.items():
        yield label, [_mean(column, name, read_number(column.figures.get(name)), format_percent) for column in columns]
    yield from _means(columns)


def _means(columns: Sequence[Column]) -> Iterator[tuple[str, list[object]]]:
    """The reward with its parts, lengths, and what the grader could not judge."""
    yield "reward", [_mean(column, "reward", read_number(column.figures.get("reward")), _reward) for column in columns]
    for part in dict.fromkeys(part for column in columns for part in column.figures.get("parts") or {}):
        found = [read_number((column.figures.get("parts") or {}).get(part)) for column in columns]
        cells = [_mean(column, f"reward/{part}", own, _reward) for column, own in zip(columns, found, strict=True)]
        yield f"reward: {part}", cells
    for name, label in LENGTHS.items():
        yield label, [_mean(column, name, read_number(column.figures.get(name)), format_decimal) for column in columns]
    counted = {"timeouts": "grader timeouts", "errors": "grader errors", "without_reward": "answers without a reward"}
    for name, label in counted.items():
        if any(column.figures.get(name) for column in columns):
            yield label, [f"{column.figures.get(name, 0):,}" for column in columns]


def _class(figures: Row, name: str) -> float | None:
    return read_number((figures.get("classes") or {}).get(name))


def _mean(column: Column, name: str, value: float | None, write: Callable[[float], str]) -> object:
    """A mean over answers with its interval, and of how many answers where these are not all."""
    if value is None:
        return NOTHING
    bounds = column.bounds.get(name, Bounds(None))
    told = write(value)
    if bounds.ends:
        low, high = (f"{100 * end:.1f}" if write is format_percent else write(end) for end in bounds.ends)
        told += f" [{low},{SPACE}{high}]"
    if bounds.some is None:
        return told
    return join_html(told, build_element("small", f"of {bounds.some:,} answer{'' if bounds.some == 1 else 's'}"))


def _reward(value: float) -> str:
    return f"{value:.3f}".replace("-", MINUS)


def _kinds(columns: Sequence[Column], decoding: str) -> Iterator[Html]:
    """Accuracy by subject, level and source, where there are several."""
    for kind in KINDS:
        found = [column.figures.get("by", {}).get(kind, {}) for column in columns]
        names = sorted({name for own in found for name in own}, key=lambda name: (name.isdigit(), len(name), name))
        if len(names) > 1:
            more = f", the first {MOST_KINDS} of {len(names):,}" if len(names) > MOST_KINDS else ""
            rows = [(_title(kind, name), [_kind(own.get(name)) for own in found]) for name in names[:MOST_KINDS]]
            heads = ("", *(column.title for column in columns))
            yield build_table(
                heads, rows, caption=f"{_label_rows(decoding)} by {kind}{more}: share right", kind=_look(columns)
            )


def _title(kind: str, name: str) -> str:
    return f"{kind} {name}" if name.isdigit() else name


def _kind(found: Any) -> object:
    return (
        join_html(format_interval(found), build_element("small", f"of {found['n']:,} problems")) if found else NOTHING
    )


def _format_bounds(found: Any) -> str:
    return format_interval({**found, "accuracy": found["value"]}) if found else NOTHING
