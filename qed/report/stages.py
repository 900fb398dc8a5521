"""Select the policies of a run to compare: the initial one, the last one of each phase, and the control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qed.evaluation.paired import PairedTest, compare_paired
from qed.report.numbers import read_number
from qed.report.record import Phase, Record
from qed.runs.run import Row

START = "before training"
Pairs = list[tuple[Row, Row]]


@dataclass(frozen=True)
class Stage:
    """Evaluated policy: the initial one, the last one of a phase, or the last one of an unfinished phase."""

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
    """Last two stages of a run: their greedy answers to the same problems, and the paired test of each decoding."""

    before: Stage
    after: Stage
    pairs: Pairs
    tests: dict[str, PairedTest]

    @property
    def counts(self) -> Counter[tuple[bool, bool]]:
        """Count the problems by (right before, right after)."""
        return Counter((bool(before["correct"]), bool(after["correct"])) for before, after in self.pairs)


@dataclass(frozen=True)
class ControlComparison:
    """Last stages of an RL run and of its control; the control got the training time of the RL phase `phase`.

    `tests` has the paired test of each decoding, the control before and the run after, where both answered the same
    problems.
    """

    control: Stage
    run: Stage
    phase: Phase
    finished: bool
    seconds: float
    tests: dict[str, PairedTest]


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


def compare_stages(record: Record, task: str) -> Comparison | None:
    """Compare the last two stages; None with fewer than two stages or without stored answers to the same problems."""
    stages = find_stages(record, task)
    if len(stages) < 2:
        return None
    before, after = stages[-2:]
    tests = compare_decodings((record, before), (record, after), task)
    pairs = _pair_answers(record.read_rows(before.step, task, "greedy"), record.read_rows(after.step, task, "greedy"))
    return Comparison(before, after, pairs, tests) if pairs else None


def compare_decodings(one: tuple[Record, Stage], other: tuple[Record, Stage], task: str) -> dict[str, PairedTest]:
    """Compute the paired test of each decoding of two stages, where both have stored answers to the same problems."""
    (before, old), (after, new) = one, other
    tests = {
        decoding: compare_paired(before.read_rows(old.step, task, decoding), after.read_rows(new.step, task, decoding))
        for decoding in old.figures
        if decoding in new.figures
    }
    return {decoding: test for decoding, test in tests.items() if test}


def find_control_stage(record: Record, task: str) -> Stage | None:
    """Return the control's last evaluation; None while only its initial policy was evaluated."""
    stages = find_stages(record.control, task)[-1:] if record.control else []
    return next((stage for stage in stages if stage.label != START), None)


def compare_control(record: Record, task: str) -> ControlComparison | None:
    """Compare an RL run with its control; None where one of them has no evaluation."""
    control, control_stage = record.control, find_control_stage(record, task)
    phase = next((phase for phase in record.phases if phase.is_online), None)
    end = next((stage for stage in find_stages(record, task)[-1:] if phase and stage.step > phase.begin), None)
    if control is None or control_stage is None or phase is None or end is None:
        return None
    rows = [row for part in control.phases for row in part.rows if row["step"] <= control_stage.step]
    seconds = sum(read_number(row.get("time/step")) or 0.0 for row in rows)
    is_finished = all(part.is_complete for part in (*control.phases, phase))
    tests = compare_decodings((control, control_stage), (record, end), task)
    return ControlComparison(control_stage, end, phase, is_finished, seconds, tests)


def _pair_answers(before: Sequence[Row], after: Sequence[Row]) -> Pairs:
    """Pair the answers with the same problem, gold and sample number in both evaluations."""
    answers = {_name_answer(row): row for row in after}
    return [(row, answers[name]) for row in before if (name := _name_answer(row)) in answers]


def _name_answer(row: Row) -> tuple[str, str, int]:
    return str(row["group_id"]), str(row.get("gold")), row.get("sample_id", 0)
