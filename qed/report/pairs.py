"""Paired tests of runs against the first one that shares problems with a later run, on the shared problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qed.evaluation.cautions import count_truncated, list_cautions, separate_golds
from qed.evaluation.compared_runs import Decoding, build_decoding, describe_training
from qed.evaluation.compared_tasks import count_answers
from qed.evaluation.measures import ACCURACY
from qed.evaluation.paired import PairedTest, compare_paired
from qed.report.adjusted import SIGNIFICANT, AdjustedTest, adjust_tests
from qed.report.markup import Html, build_element, build_table, join_html
from qed.report.numbers import format_p_value, format_percent, format_point_bounds, format_points
from qed.report.panels import label_runs
from qed.report.record import Record
from qed.runs.run import Row

UNPAIRED = "The runs have no stored answers to the same problems, so no paired test is possible."
COLUMNS = ("", "first", "other", "difference in points", "better / worse", "p", "p (Holm)", "n")


@dataclass(frozen=True)
class PairName:
    """What a test compares: a measure of a decoding of a task, between the run `other` and the run `first`."""

    task: str
    first: str
    other: str
    decoding: str
    measure: str

    @property
    def label(self) -> str:
        """Return what is compared, in words."""
        return f"{self.decoding} answers" + ("" if self.measure == ACCURACY else f", {self.measure}")


@dataclass(frozen=True)
class RunTests:
    """The paired tests of a report; by task, the differences other than the policy, and the runs without a test."""

    tests: dict[PairName, AdjustedTest]
    cautions: dict[str, list[str]]
    left_out: dict[str, list[str]]


@dataclass(frozen=True)
class _Evaluated:
    """The last evaluation of a task by a run."""

    name: str
    record: Record
    step: int
    figures: Row


def compare_runs(records: Sequence[Record], tasks: Sequence[str]) -> RunTests:
    """Compute the paired tests of runs' last evaluations against the first run, adjusted for their number.

    The first run is the first one with answers to the problems of a later one.

    Args:
        records: the runs.
        tasks: the tasks of the report.
    """
    tests: dict[PairName, PairedTest] = {}
    cautions: dict[str, list[str]] = {}
    left_out: dict[str, list[str]] = {}
    for task in tasks:
        evaluated = [
            _Evaluated(name, record, *evaluations[-1])
            for record, name in zip(records, label_runs(records), strict=True)
            if (evaluations := record.list_evaluations(task))
        ]
        compared = (_compare_with_first(evaluated[start:], task) for start in range(len(evaluated)))
        found, cautions[task] = next((pair for pair in compared if pair[0]), ({}, []))
        tests |= found
        tested = {name for test in found for name in (test.first, test.other)}
        left_out[task] = [one.name for one in evaluated if one.name not in tested]
    return RunTests(adjust_tests(tests), cautions, left_out)


def _compare_with_first(evaluated: Sequence[_Evaluated], task: str) -> tuple[dict[PairName, PairedTest], list[str]]:
    """Return the tests of runs against the first one, and warnings about other differences."""
    tests: dict[PairName, PairedTest] = {}
    cautions: list[str] = []
    first = evaluated[0]
    for other in evaluated[1:]:
        for decoding in [decoding for decoding in first.figures if decoding in other.figures]:
            sides, notes = separate_golds([_load_side(each, task, decoding) for each in (first, other)])
            found = list(_test_sides(sides))
            tests |= {PairName(task, first.name, other.name, decoding, test.measure): test for test in found}
            if found:
                cautions.extend(_list_lost([first, other], task, decoding))
                lines = _warn_of(sides, notes, decoding, first.name)
                cautions.extend(f"{other.name}, {line}" for line in lines)
    return tests, list(dict.fromkeys(cautions))


def _list_lost(evaluated: Sequence[_Evaluated], task: str, decoding: str) -> Iterator[str]:
    for one in evaluated:
        if lost := one.record.describe_lost(one.step, task, decoding, one.figures[decoding]):
            yield f"{one.name}, {decoding} answers. {lost} Tests are of these alone."


def _load_side(one: _Evaluated, task: str, decoding: str) -> Decoding:
    rows = one.record.read_rows(one.step, task, decoding)
    return build_decoding(rows, one.figures[decoding], describe_training(one.record.settings))


def _test_sides(sides: Sequence[Decoding]) -> Iterator[PairedTest]:
    """Yield the test of the accuracy, and of pass@k and maj@k if both sides have k answers to each problem."""
    before, after = (side.rows for side in sides)
    k = count_answers([before, after])
    for measure in [ACCURACY, *([f"pass@{k}", f"maj@{k}"] if k > 1 else [])]:
        if test := compare_paired(before, after, measure):
            yield test


def _warn_of(sides: Sequence[Decoding], notes: Sequence[str], decoding: str, first: str) -> Iterator[str]:
    """Yield warnings about other differences between two sides, and about truncated answers."""
    for line in [*list_cautions(sides[:1], sides[1:]), *notes]:
        yield f"{decoding} answers. {line}"
    cut = [count_truncated([side]) for side in sides]
    if any(side["truncated"] for side in cut):
        shown = (f"{side['truncated']:,} of {side['answers']:,} ({side['truncated_right']:,} right)" for side in cut)
        yield f"{decoding} answers cut off at the limit of tokens: {f' in {first}, '.join(shown)} in this one."


def render_tests(found: RunTests, records: Sequence[Record], task: str) -> Html | None:
    """Render the tests of a task, or a sentence if none are possible; None unless two runs have evaluated it."""
    own = {name: adjusted for name, adjusted in found.tests.items() if name.task == task}
    if sum(bool(record.list_evaluations(task)) for record in records) < 2:
        return None
    if not own:
        return build_element("p", f"{UNPAIRED} A difference is not established.", class_="note")
    rows = [
        (join_html(name.other, build_element("small", name.label)), _build_cells(test)) for name, test in own.items()
    ]
    first = next(iter(own)).first
    caption = f"Problem by problem against {first}" + (", the first run" if first == label_runs(records)[0] else "")
    lines = [*found.cautions[task]]
    if left_out := found.left_out[task]:
        lines.append(
            f"Not compared, because no decoding has stored answers of them and of {first} to the same problems: "
            f"{', '.join(left_out)}."
        )
    return join_html(
        build_table(COLUMNS, rows, caption, "stack"),
        build_element("ul", *(build_element("li", line) for line in lines)) if lines else None,
        build_element("p", format_note(len(found.tests)), class_="note"),
    )


def _build_cells(adjusted: AdjustedTest) -> list[object]:
    test = adjusted.test
    bounds = format_point_bounds(test.ci_lo, test.ci_hi)
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
    """Return the notes for a reader of `count` paired tests: on the brackets, the pairing, and multiple testing."""
    note = "Brackets are 95 % intervals of the difference. Problems are paired by their id and their known answer."
    if count > 1:
        note += (
            f" With {count} tests the chance that one falls below {SIGNIFICANT} by luck is higher than {SIGNIFICANT}: "
            f"require p (Holm) < {SIGNIFICANT}, which is adjusted for all of them."
        )
    return note if one_run else f"{note} Two runs also differ in their seeds; no test over problems can see that."
