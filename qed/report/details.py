"""Full tables of evaluations, side by side: every figure with its interval and number of problems or answers."""

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

EXTRACTIONS = {"strict": "answer found strictly", "flexible": "answer found anywhere", "string": "equal as a string"}
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
TURNS = {"mean_turns": "turns of an answer"}  # shown if an environment replied
KINDS = ("subject", "level", "source")
MAX_KINDS = 60
NO_VALUE = "–"


@dataclass(frozen=True)
class Column:
    """Evaluation in a table: title, figures, and intervals if the answers were stored."""

    title: str
    figures: Row
    bounds: dict[str, Bounds]


def render_run(record: Record, task: str) -> list[Html]:
    """Render the stages of a run and its control side by side, with one set of tables for each decoding."""
    evaluations = [(stage.label, stage.figures, record, stage.step) for stage in find_stages(record, task)]
    if (last := find_control_stage(record, task)) and record.control:
        evaluations.append(("control: SFT continued", last.figures, record.control, last.step))
    return _render_details(evaluations, task)


def render_runs(records: Sequence[Record], task: str) -> list[Html]:
    """Render the last evaluation of each run; for a single run also its first one."""
    evaluations: list[tuple[str, Row, Record, int]] = []
    for record, name in zip(records, label_runs(records), strict=True):
        measured = record.list_evaluations(task)
        alone = len(records) == 1 and len(measured) > 1
        if alone:
            evaluations.append((f"step {measured[0][0]:,}", measured[0][1], record, measured[0][0]))
        evaluations += [(f"step {s:,}" if alone else name, figures, record, s) for s, figures in measured[-1:]]
    return _render_details(evaluations, task)


def _render_details(evaluations: Sequence[tuple[str, Row, Record, int]], task: str) -> list[Html]:
    """Render the tables; empty if the summaries hold only accuracy, as in old runs."""
    parts: list[Html] = []
    for decoding in dict.fromkeys(name for _, figures, _, _ in evaluations for name in figures):
        columns, lost = list[Column](), list[str]()
        for title, figures, record, step in evaluations:
            if decoding not in figures:
                continue
            if reason := record.describe_lost(step, task, decoding, figures[decoding]):
                lost.append(f"{title}, {decoding} answers: {reason} Other means than accuracy have no intervals.")
            bounds = {} if reason else compute_bounds(record.read_rows(step, task, decoding))
            columns.append(Column(title, figures[decoding], bounds))
        if any("accuracy_by" in column.figures for column in columns):
            parts += [_render_table(columns, decoding), *_render_kinds(columns, decoding)]
        parts += [build_element("p", reason, class_="trouble") for reason in lost]
    return parts


def _render_table(columns: Sequence[Column], decoding: str) -> Html:
    names = ("", *(column.title for column in columns))
    rows = [row for row in _build_rows(columns) if any(cell != NO_VALUE for cell in row[1])]
    return build_table(names, rows, caption=_label_rows(decoding), kind=_choose_class(columns))


def _choose_class(columns: Sequence[Column]) -> str:
    """Return the CSS class; a single column fits a phone screen without stacking."""
    return "stack figures" if len(columns) > 1 else "figures"


def _label_rows(decoding: str) -> str:
    return "The responses" if decoding == "responses" else f"{decoding.capitalize()} answers"


def _build_rows(columns: Sequence[Column]) -> Iterator[tuple[str, list[object]]]:
    """Yield a row for each figure that any of the columns has."""
    summaries = [column.figures for column in columns]
    yield "problems × answers", [f"{figures['n']:,} × {figures.get('k', 1):,}" for figures in summaries]
    temperatures = [read_number(figures.get("temperature")) for figures in summaries]
    if len(set(temperatures)) > 1:
        yield "temperature", [NO_VALUE if value is None else f"{value:g}" for value in temperatures]
    sizes = sorted({figures.get("k", 1) for figures in summaries})
    label = "right" if sizes == [1] else "right, avg@" + " or ".join(map(str, sizes))
    yield label, [format_interval(figures) for figures in summaries]
    for name, label in EXTRACTIONS.items():
        yield label, [_format_bounds(figures.get("accuracy_by", {}).get(name)) for figures in summaries]
    for kind, label in (("pass", "one of {k} right, pass@{k}"), ("maj", "vote of {k} right, maj@{k}")):
        for k in sorted({int(k) for figures in summaries for k in figures.get(kind, {})} - {1}):
            yield label.format(k=k), [_format_bounds(figures.get(kind, {}).get(str(k))) for figures in summaries]
    for name, label in CLASSES.items():
        values = [_get_class(column.figures, name) for column in columns]
        yield label, _format_means(columns, name, values, format_percent)
    for name, label in SHARES.items():
        values = [read_number(column.figures.get(name)) for column in columns]
        yield label, _format_means(columns, name, values, format_percent)
    yield from _build_mean_rows(columns)


def _build_mean_rows(columns: Sequence[Column]) -> Iterator[tuple[str, list[object]]]:
    """Yield the rows of the reward and its parts, of lengths, and of answers that could not be graded."""
    rewards = [read_number(column.figures.get("reward")) for column in columns]
    yield "reward", _format_means(columns, "reward", rewards, _format_reward)
    for part in dict.fromkeys(part for column in columns for part in column.figures.get("parts") or {}):
        values = [read_number((column.figures.get("parts") or {}).get(part)) for column in columns]
        yield f"reward: {part}", _format_means(columns, f"reward/{part}", values, _format_reward)
    several = any("mean_turns" in column.figures for column in columns)
    for name, label in ((TURNS if several else {}) | LENGTHS).items():
        values = [read_number(column.figures.get(name)) for column in columns]
        yield label, _format_means(columns, name, values, format_decimal)
    counters = {
        "truncated_right": "cut off, but right",
        "timeouts": "grader timeouts",
        "errors": "grader errors",
        "without_reward": "answers without a reward",
    }
    for name, label in counters.items():
        if any(column.figures.get(name) for column in columns):
            yield label, [f"{column.figures.get(name, 0):,}" for column in columns]


def _get_class(figures: Row, name: str) -> float | None:
    return read_number((figures.get("classes") or {}).get(name))


def _format_means(
    columns: Sequence[Column], name: str, values: Sequence[float | None], write: Callable[[float], str]
) -> list[object]:
    return [_format_mean(column, name, value, write) for column, value in zip(columns, values, strict=True)]


def _format_mean(column: Column, name: str, value: float | None, write: Callable[[float], str]) -> object:
    """Format a mean with its interval, and the number of answers if it does not cover all of them."""
    if value is None:
        return NO_VALUE
    bounds = column.bounds.get(name, Bounds(None))
    content = write(value)
    if bounds.ends:
        low, high = (f"{100 * end:.1f}" if write is format_percent else write(end) for end in bounds.ends)
        content += f" [{low},{SPACE}{high}]"
    count = bounds.n_answers
    if count is None:
        return content
    return join_html(content, build_element("small", f"of {count:,} answer{'' if count == 1 else 's'}"))


def _format_reward(value: float) -> str:
    return f"{value:.3f}".replace("-", MINUS)


def _render_kinds(columns: Sequence[Column], decoding: str) -> Iterator[Html]:
    """Render accuracy by subject, level and source, if there are several."""
    for kind in KINDS:
        tables = [column.figures.get("by", {}).get(kind, {}) for column in columns]
        names = sorted({name for table in tables for name in table}, key=lambda name: (name.isdigit(), len(name), name))
        if len(names) < 2:
            continue
        rows = [
            (f"{kind} {name}" if name.isdigit() else name, [_format_kind(table.get(name)) for table in tables])
            for name in names[:MAX_KINDS]
        ]
        if kind == "source":
            means = [column.figures.get("mean_of_sources") for column in columns]
            rows.append(("mean of sources", [format_interval(mean) if mean else NO_VALUE for mean in means]))
        more = f", the first {MAX_KINDS} of {len(names):,}" if len(names) > MAX_KINDS else ""
        caption = f"{_label_rows(decoding)} by {kind}{more}: share right"
        heads = ("", *(column.title for column in columns))
        yield build_table(heads, rows, caption=caption, kind=_choose_class(columns))


def _format_kind(figures: Any) -> object:
    if not figures:
        return NO_VALUE
    return join_html(format_interval(figures), build_element("small", f"of {figures['n']:,} problems"))


def _format_bounds(figures: Any) -> str:
    return format_interval({**figures, "accuracy": figures["value"]}) if figures else NO_VALUE
