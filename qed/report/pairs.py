"""Paired tests between runs, each against the first run, on the problems that both answered."""

from __future__ import annotations

from collections.abc import Sequence

from qed.evaluation.paired import PairedTest, compare_paired
from qed.report.markup import Html, build_element, build_table, join_html
from qed.report.numbers import SPACE, format_p_value, format_percent, format_points
from qed.report.panels import label_runs
from qed.report.record import Record

COLUMNS = ("", "first", "other", "difference in points", "better / worse", "p", "n")
SIGNIFICANT = 0.05


def render_tests(records: Sequence[Record], task: str) -> Html | None:
    """Render the paired tests of the last evaluations; None unless two runs have answers to the same problems."""
    evaluated = [
        (name, record, evaluations[-1])
        for record, name in zip(records, label_runs(records), strict=True)
        if (evaluations := record.list_evaluations(task))
    ]
    if len(evaluated) < 2:
        return None
    first_name, first, (step, figures) = evaluated[0]
    rows: list[tuple[Html, list[object]]] = []
    for name, other, (other_step, other_figures) in evaluated[1:]:
        for decoding in [decoding for decoding in figures if decoding in other_figures]:
            test = compare_paired(first.read_rows(step, task, decoding), other.read_rows(other_step, task, decoding))
            if test:
                rows.append((join_html(name, build_element("small", f"{decoding} answers")), _build_cells(test)))
    if not rows:
        return None
    caption = f"Problem by problem against {first_name}, the first run"
    return join_html(
        build_table(COLUMNS, rows, caption, "stack"), build_element("p", format_note(len(rows)), class_="note")
    )


def _build_cells(test: PairedTest) -> list[object]:
    bounds = f"[{format_points(test.ci_lo)},{SPACE}{format_points(test.ci_hi)}]"
    unpaired = build_element("small", f"{test.unpaired:,} unpaired") if test.unpaired else None
    return [
        format_percent(test.before),
        format_percent(test.after),
        join_html(build_element("b", format_points(test.difference)), build_element("small", bounds)),
        f"{len(test.gained):,} / {len(test.lost):,}",
        join_html(format_p_value(test.p_value) if test.p_value is not None else "–", build_element("small", test.test)),
        join_html(f"{test.n:,}", unpaired),
    ]


def format_note(count: int, one_run: bool = False) -> str:
    """Return what a reader of `count` paired tests must know: the brackets, the pairing, and the chance of luck."""
    note = "Brackets are 95 % intervals of the difference. Problems are paired by their id and their known answer."
    if count > 1:
        note += (
            f" With {count} tests the chance that one falls below {SIGNIFICANT} by luck is higher than {SIGNIFICANT}: "
        )
        note += f"require p < {SIGNIFICANT / count:.2g} (Bonferroni)."
    return note if one_run else f"{note} Two runs also differ in their seeds; no test over problems can see that."
