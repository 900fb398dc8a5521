"""Select the policies of a run to compare: the initial one, the last one of each phase, and the control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qed.evaluation.paired import compare_paired
from qed.report.adjusted import AdjustedTest, adjust_tests
from qed.report.numbers import read_number
from qed.report.record import Phase, Record
from qed.runs.run import Row

START = "before training"
Pairs = list[tuple[Row, Row]]


@dataclass(frozen=True)
class Stage:
    """An evaluated policy: the initial one, the last one of a phase, or the last one of an unfinished phase."""

    label: str
    step: int
    figures: dict[str, Row]

    @property
    def greedy(self) -> Row:
        """Return the figures of greedy decoding, which every stage has."""
        return self.figures["greedy"]

    @property
    def title(self) -> str:
        """Return the label with a capital first letter."""
        return self.label[:1].upper() + self.label[1:]


@dataclass(frozen=True)
class Comparison:
    """The last two stages of a run, their greedy answers to the same problems, and the paired test of each decoding."""

    before: Stage
    after: Stage
    pairs: Pairs
    tests: dict[str, AdjustedTest]

    @property
    def counts(self) -> Counter[tuple[bool, bool]]:
        """Count the problems by (right before, right after)."""
        return Counter((bool(before["correct"]), bool(after["correct"])) for before, after in self.pairs)


@dataclass(frozen=True)
class ControlComparison:
    """The last stages of an RL run and of its control, which got the training time of the RL phase `phase`.

    `tests` has the paired test of each decoding, with the control as before and the run as after, if both answered the
    same problems.
    """

    control: Stage
    run: Stage
    phase: Phase
    finished: bool
    seconds: float
    tests: dict[str, AdjustedTest]


def find_stages(record: Record, task: str) -> list[Stage]:
    """Return the last evaluation before the first phase and the last one of each phase."""
    measured = [(step, figures) for step, figures in record.list_evaluations(task) if "greedy" in figures]
    if not record.phases:
        return [Stage(f"at step {step:,}", step, figures) for step, figures in measured]
    stages = [Stage(START, step, figures) for step, figures in measured if step <= record.phases[0].begin][-1:]
    for phase in record.phases:
        for step, figures in [pair for pair in measured if phase.begin < pair[0] <= phase.last][-1:]:
            is_end = step == phase.last and phase.is_complete
            count = step - phase.begin
            part = f"{count:,} step{'' if count == 1 else 's'} of "
            label = f"after {'' if is_end else part}{phase.label}"
            stages.append(Stage(label, step, figures))
    return stages


def compare_stages(record: Record) -> dict[str, Comparison]:
    """Compare the last two stages of each task.

    Tasks with fewer than two stages, or without stored answers to the same problems, are skipped.
    """
    stages = {task: own[-2:] for task in record.tasks if len(own := find_stages(record, task)) > 1}
    tests = _test_stages({task: ((record, before), (record, after)) for task, (before, after) in stages.items()})
    comparisons = {}
    for task, (before, after) in stages.items():
        rows = (record.read_rows(stage.step, task, "greedy") for stage in (before, after))
        if pairs := _pair_answers(*rows):
            comparisons[task] = Comparison(before, after, pairs, tests[task])
    return comparisons


def _test_stages(
    stages: Mapping[str, tuple[tuple[Record, Stage], tuple[Record, Stage]]],
) -> dict[str, dict[str, AdjustedTest]]:
    """Compute the paired test between two stages for each task and decoding, with p-values adjusted for their number.

    Decodings without stored answers to the same problems are skipped.
    """
    tests = {}
    for task, ((before, old), (after, new)) in stages.items():
        for decoding in old.figures:
            if decoding in new.figures:
                rows = before.read_rows(old.step, task, decoding), after.read_rows(new.step, task, decoding)
                if test := compare_paired(*rows):
                    tests[task, decoding] = test
    adjusted = adjust_tests(tests)
    return {task: {decoding: test for (own, decoding), test in adjusted.items() if own == task} for task in stages}


def find_control_stage(record: Record, task: str) -> Stage | None:
    """Return the control's last evaluation; None while only its initial policy was evaluated."""
    stages = find_stages(record.control, task)[-1:] if record.control else []
    return next((stage for stage in stages if stage.label != START), None)


def compare_controls(record: Record) -> dict[str, ControlComparison]:
    """Compare an RL run with its control on each task that both have evaluated."""
    control = record.control
    phase = next((phase for phase in record.phases if phase.is_online), None)
    if control is None or phase is None:
        return {}
    stages = {}
    for task in record.tasks:
        last, theirs = find_stages(record, task)[-1:], find_control_stage(record, task)
        if theirs is not None and last and last[0].step > phase.begin:
            stages[task] = (control, theirs), (record, last[0])
    tests = _test_stages(stages)
    is_finished = all(part.is_complete for part in (*control.phases, phase))
    comparisons = {}
    for task, ((_, theirs), (_, ours)) in stages.items():
        rows = [row for part in control.phases for row in part.rows if row["step"] <= theirs.step]
        seconds = sum(read_number(row.get("time/step")) or 0.0 for row in rows)
        comparisons[task] = ControlComparison(theirs, ours, phase, is_finished, seconds, tests[task])
    return comparisons


def _pair_answers(before: Sequence[Row], after: Sequence[Row]) -> Pairs:
    """Pair the answers with the same problem, gold and sample number in both evaluations."""
    answers = {_name_answer(row): row for row in after}
    return [(row, answers[name]) for row in before if (name := _name_answer(row)) in answers]


def _name_answer(row: Row) -> tuple[str, str, int]:
    return str(row["group_id"]), str(row.get("gold")), row.get("sample_id", 0)
