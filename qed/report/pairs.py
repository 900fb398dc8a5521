"""Paired tests between runs, each against the first run, on the problems that both answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qed.evaluation.compared_tasks import count_answers
from qed.evaluation.measures import ACCURACY
from qed.evaluation.paired import PairedTest, compare_paired
from qed.report.adjusted import SIGNIFICANT, AdjustedTest, adjust_tests
from qed.report.markup import Html, build_element, build_table, join_html
from qed.report.numbers import SPACE, format_p_value, format_percent, format_points
from qed.report.panels import label_runs
from qed.report.record import Record

COLUMNS = ("", "first", "other", "difference in points", "better / worse", "p", "p (Holm)", "n")


@dataclass(frozen=True)
class PairName:
    """What a test compares: a measure of a decoding of a task, of the run `other` against the run `first`."""

    task: str
    first: str
    other: str
    decoding: str
    measure: str

    @property
    def label(self) -> str:
        """Return what is compared, in words."""
        return f"{self.decoding} answers" + ("" if self.measure == ACCURACY else f", {self.measure}")


def compare_runs(records: Sequence[Record], tasks: Sequence[str]) -> dict[PairName, AdjustedTest]:
    """Compute the paired tests of the last evaluations of runs against the first, adjusted for all of them.

    Args:
        records: the runs.
        tasks: the tasks of the report.
    """
    tests: dict[PairName, PairedTest] = {}
    for task in tasks:
        evaluated = [
            (name, record, evaluations[-1])
            for record, name in zip(records, label_runs(records), strict=True)
            if (evaluations := record.list_evaluations(task))
        ]
        for name, other, (other_step, other_figures) in evaluated[1:]:
            first_name, first, (step, figures) = evaluated[0]
            for decoding in [decoding for decoding in figures if decoding in other_figures]:
                rows = first.read_rows(step, task, decoding), other.read_rows(other_step, task, decoding)
                k = count_answers(rows)
                for measure in [ACCURACY, *([f"pass@{k}", f"maj@{k}"] if k > 1 else [])]:
                    if test := compare_paired(*rows, measure):
                        tests[PairName(task, first_name, name, decoding, measure)] = test
    return adjust_tests(tests)


def render_tests(tests: Mapping[PairName, AdjustedTest], task: str) -> Html | None:
    """Render the tests of a task; None unless two runs have answers to the same problems."""
    own = {name: adjusted for name, adjusted in tests.items() if name.task == task}
    if not own:
        return None
    rows = [
        (join_html(name.other, build_element("small", name.label)), _build_cells(test)) for name, test in own.items()
    ]
    caption = f"Problem by problem against {next(iter(own)).first}, the first run"
    return join_html(
        build_table(COLUMNS, rows, caption, "stack"), build_element("p", format_note(len(tests)), class_="note")
    )


def _build_cells(adjusted: AdjustedTest) -> list[object]:
    test = adjusted.test
    bounds = f"[{format_points(test.ci_lo)},{SPACE}{format_points(test.ci_hi)}]"
    unpaired = build_element("small", f"{test.unpaired:,} unpaired") if test.unpaired else None
    return [
        format_percent(test.before),
        format_percent(test.after),
        join_html(build_element("b", format_points(test.difference)), build_element("small", bounds)),
        f"{len(test.gained):,} / {len(test.lost):,}",
        join_html(format_p_value(test.p_value), build_element("small", test.note or test.test)),
        format_p_value(adjusted.p_holm),
        join_html(f"{test.n:,}", unpaired),
    ]


def format_note(count: int, one_run: bool = False) -> str:
    """Return what a reader of `count` paired tests must know: the brackets, the pairing, and the chance of luck."""
    note = "Brackets are 95 % intervals of the difference. Problems are paired by their id and their known answer."
    if count > 1:
        note += (
            f" With {count} tests the chance that one falls below {SIGNIFICANT} by luck is higher than {SIGNIFICANT}: "
            f"require p (Holm) < {SIGNIFICANT}, which is adjusted for all of them."
        )
    return note if one_run else f"{note} Two runs also differ in their seeds; no test over problems can see that."
