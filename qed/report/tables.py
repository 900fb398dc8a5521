"""Smaller tables of a report: answer transitions, accuracy by level and subject, cost, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qed.evaluation.intervals import compute_share_interval
from qed.report.markup import Html, build_element, build_table, join_html
from qed.report.numbers import format_duration, format_points
from qed.report.outcomes import render_with_interval
from qed.report.panels import label_runs
from qed.report.record import Phase, Record
from qed.report.stages import Comparison, Pairs
from qed.runs.run import Row

BREAKDOWNS = ("level", "subject")
MAX_KINDS = 40
COSTS = (
    "",
    "steps",
    "training time",
    "– sampling",
    "– grading",
    "– learning",
    "tokens trained",
    "tokens/s",
    "peak memory",
)
LEARNING = ("score", "update", "sync")  # step timers that the report sums as learning
WORDS = {
    (True, True): "both right",
    (True, False): "right→wrong",
    (False, True): "wrong→right",
    (False, False): "both wrong",
}


def render_moves(comparison: Comparison) -> Html:
    """Render how many answers were right or wrong before and after."""
    rows = [
        (
            f"{'right' if was else 'wrong'} {comparison.before.label}",
            [
                join_html(f"{comparison.counts[was, now]:,}", build_element("small", WORDS[was, now]))
                for now in (True, False)
            ],
        )
        for was in (True, False)
    ]
    return build_table(("", f"right {comparison.after.label}", f"wrong {comparison.after.label}"), rows, kind="moves")


def render_breakdowns(comparison: Comparison) -> Iterator[Html]:
    """Render greedy accuracy by level and by subject, if the problems have more than one."""
    for key in BREAKDOWNS:
        kinds: dict[str, Pairs] = {}
        for pair in comparison.pairs:
            if pair[0].get(key) is not None:
                kinds.setdefault(str(pair[0][key]), []).append(pair)
        if len(kinds) > 1:
            yield _render_breakdown(key, kinds, comparison)


def _render_breakdown(key: str, kinds: Mapping[str, Pairs], comparison: Comparison) -> Html:
    names = sorted(kinds, key=lambda kind: (len(kind), kind) if kind.isdigit() else (99, kind))
    more = f" The first {MAX_KINDS} of {len(kinds):,}." if len(kinds) > MAX_KINDS else ""
    rows: list[tuple[str, list[object]]] = []
    for name in names[:MAX_KINDS]:
        old, new = (_build_share([bool(pair[side]["correct"]) for pair in kinds[name]]) for side in (0, 1))
        gain = format_points(new["accuracy"] - old["accuracy"])
        title = f"{key} {name}" if name.isdigit() else name
        rows.append((title, [f"{len(kinds[name]):,}", render_with_interval(old), render_with_interval(new), gain]))
    columns = (key, "n", comparison.before.label, comparison.after.label, "change in points")
    return build_table(columns, rows, f"Greedy accuracy by {key}, with 95 % intervals.{more}", "stack")


def _build_share(right: Sequence[bool]) -> Row:
    low, high = compute_share_interval(sum(right), len(right))
    return {"accuracy": sum(right) / len(right), "ci_lo": low, "ci_hi": high}


def render_costs(records: Sequence[Record]) -> Html:
    """Render time, tokens and memory of each phase, of the control and of the evaluations."""
    rows: list[tuple[str, list[str]]] = []
    for record, name in zip(records, label_runs(records), strict=True):
        prefix = f"{name}: " if len(records) > 1 else ""
        rows += [(prefix + phase.label, _build_cost(phase)) for phase in record.phases]
        if record.control:
            rows += [
                (f"{prefix}control, {phase.label} continued", _build_cost(phase)) for phase in record.control.phases
            ]
        if record.evaluation_seconds is not None:
            title = f"{prefix}{len(record.evaluations):,} evaluations"
            rows.append((title, ["–", format_duration(record.evaluation_seconds), *["–"] * (len(COSTS) - 3)]))
    return build_table(COSTS, rows, kind="stack")


def _build_cost(phase: Phase) -> list[str]:
    stages = {stage: phase.compute_total(f"time/{stage}") for stage in ("step", "sample", "grade", *LEARNING)}
    learning = [seconds for stage in LEARNING if (seconds := stages[stage]) is not None]
    times = [stages["step"], stages["sample"], stages["grade"], sum(learning) if learning else None]
    tokens = phase.compute_total("train/tokens")
    return [
        f"{len(phase.rows):,}",
        *(format_duration(time) if time is not None else "–" for time in times),
        f"{tokens:,.0f}" if tokens is not None else "–",
        f"{tokens / times[0]:,.0f}" if tokens and times[0] else "–",
        _format_memory(phase.compute_peak("mem/rss_gb"), phase.compute_peak("mem/gpu_gb")),
    ]


def _format_memory(process: float | None, device: float | None) -> str:
    parts = [f"{process:.1f} GiB"] if process is not None else []
    parts += [f"{device:.1f} GiB on the GPU"] if device is not None else []
    return ", ".join(parts) or "–"


def render_settings(record: Record) -> Html | None:
    """Render the non-default settings with their origins; None if the run has no record of them."""
    origins = {key: origin for key, origin in record.origins.items() if not str(origin).startswith("default")}
    rows = {
        key: join_html(_format_value(record.get_setting(key)), build_element("small", origin))
        for key, origin in origins.items()
    }
    return render_definitions(rows) if rows else None


def render_definitions(content: Mapping[str, object]) -> Html:
    """Render names and their values as a two-column table."""
    rows = [
        build_element("tr", build_element("th", name, scope="row"), build_element("td", _format_value(value)))
        for name, value in content.items()
    ]
    return build_element("table", build_element("tbody", *rows), class_="words")


def _format_value(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "–" if value is None else value if isinstance(value, Html) else str(value) or "empty"
