"""Runs side by side: paired tests on the problems that both were asked, each run against the first."""

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
    """The paired tests of the last evaluations; None where fewer than two runs have answers to the same problems."""
    known = [
        (name, record, measured[-1])
        for record, name in zip(records, label_runs(records), strict=True)
        if (measured := record.measured(task))
    ]
    if len(known) < 2:
        return None
    first, one, (step, figures) = known[0]
    rows: list[tuple[Html, list[object]]] = []
    for name, other, (at, theirs) in known[1:]:
        for decoding in [each for each in figures if each in theirs]:
            found = compare_paired(one.rows(step, task, decoding), other.rows(at, task, decoding))
            if found:
                rows.append((join_html(name, build_element("small", f"{decoding} answers")), _build_cells(found)))
    if not rows:
        return None
    caption = f"Problem by problem against {first}, the first run named"
    return join_html(
        build_table(COLUMNS, rows, caption, "stack"), build_element("p", _format_note(len(rows)), class_="note")
    )


def _build_cells(found: PairedTest) -> list[object]:
    bounds = f"[{format_points(found.ci_lo)},{SPACE}{format_points(found.ci_hi)}]"
    left_out = build_element("small", f"{found.unpaired:,} unpaired") if found.unpaired else None
    return [
        format_percent(found.before),
        format_percent(found.after),
        join_html(build_element("b", format_points(found.difference)), build_element("small", bounds)),
        f"{len(found.gained):,} / {len(found.lost):,}",
        join_html(format_p_value(found.p_value), build_element("small", found.test)),
        join_html(f"{found.n:,}", left_out),
    ]


def _format_note(count: int) -> str:
    told = "Brackets are 95 % intervals of the difference. A problem is the same when its id and its known answer are."
    if count > 1:
        told += f" With {count} tests chance alone brings one below {SIGNIFICANT} more often than that: "
        told += f"ask for p < {SIGNIFICANT / count:.2g} (Bonferroni)."
    return f"{told} A difference between two runs is also one between their seeds, which no test of problems can see."
