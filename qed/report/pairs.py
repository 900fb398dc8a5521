"""Runs side by side: paired tests on the problems that both were asked, each run against the first."""

from __future__ import annotations

from collections.abc import Sequence

from qed.evaluation.paired import Paired, paired
from qed.report.markup import Html, element, join, table
from qed.report.numbers import SPACE, p_value, percent, points
from qed.report.panels import labels
from qed.report.record import Record

COLUMNS = ("", "first", "other", "difference in points", "better / worse", "p", "n")
SIGNIFICANT = 0.05


def tests(records: Sequence[Record], task: str) -> Html | None:
    """The paired tests of the last evaluations; None where fewer than two runs have answers to the same problems."""
    known = [
        (name, record, measured[-1])
        for record, name in zip(records, labels(records), strict=True)
        if (measured := record.measured(task))
    ]
    if len(known) < 2:
        return None
    first, one, (step, figures) = known[0]
    rows: list[tuple[Html, list[object]]] = []
    for name, other, (at, theirs) in known[1:]:
        for decoding in [each for each in figures if each in theirs]:
            found = paired(one.rows(step, task, decoding), other.rows(at, task, decoding))
            if found:
                rows.append((join(name, element("small", f"{decoding} answers")), _cells(found)))
    if not rows:
        return None
    caption = f"Problem by problem against {first}, the first run named"
    return join(table(COLUMNS, rows, caption, "stack"), element("p", _note(len(rows)), class_="note"))


def _cells(found: Paired) -> list[object]:
    bounds = f"[{points(found.ci_lo)},{SPACE}{points(found.ci_hi)}]"
    left_out = element("small", f"{found.unpaired:,} unpaired") if found.unpaired else None
    return [
        percent(found.before),
        percent(found.after),
        join(element("b", points(found.difference)), element("small", bounds)),
        f"{len(found.gained):,} / {len(found.lost):,}",
        join(p_value(found.p_value), element("small", found.test)),
        join(f"{found.n:,}", left_out),
    ]


def _note(count: int) -> str:
    told = "Brackets are 95 % intervals of the difference. A problem is the same when its id and its known answer are."
    if count > 1:
        told += f" With {count} tests chance alone brings one below {SIGNIFICANT} more often than that: "
        told += f"ask for p < {SIGNIFICANT / count:.2g} (Bonferroni)."
    return f"{told} A difference between two runs is also one between their seeds, which no test of problems can see."
