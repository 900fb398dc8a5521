"""The policies of a run that are compared: where it began, where each phase ended, and the control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from qed.report.numbers import read_number
from qed.report.record import Phase, Record
from qed.runs.run import Row

START = "before training"
Pairs = list[tuple[Row, Row]]


@dataclass(frozen=True)
class Stage:
    """A policy that was evaluated: at the start, at the end of a phase, or where a phase broke off."""

    label: str
    step: int
    figures: dict[str, Row]

    @property
    def greedy(self) -> Row:
        """The figures of greedy decoding, which every stage has."""
        return self.figures["greedy"]

    @property
    def title(self) -> str:
        """The label at the beginning of a line."""
        return self.label[:1].upper() + self.label[1:]


@dataclass(frozen=True)
class Comparison:
    """The last two stages of a run, and their greedy answers to the same problems."""

    before: Stage
    after: Stage
    pairs: Pairs

    @property
    def counts(self) -> Counter[tuple[bool, bool]]:
        """How many problems went from wrong or right to wrong or right."""
        return count_transitions(self.pairs)


@dataclass(frozen=True)
class Arms:
    """RL and its control at their ends; `phase` is the RL phase whose time the control was given."""

    control: Stage
    run: Stage
    phase: Phase
    finished: bool
    seconds: float
    pairs: Pairs


def find_stages(record: Record, task: str) -> list[Stage]:
    """The evaluations that matter: before the first phase, and the last one of each phase."""
    measured = [(step, figures) for step, figures in record.measured(task) if "greedy" in figures]
    if not record.phases:
        return [Stage(f"at step {step:,}", step, figures) for step, figures in measured]
    found = [Stage(START, step, figures) for step, figures in measured if step <= record.phases[0].begin][-1:]
    for phase in record.phases:
        for step, figures in [each for each in measured if phase.begin < each[0] <= phase.last][-1:]:
            ended = step == phase.last and phase.is_complete
            made = step - phase.begin
            part = f"{made:,} step{'' if made == 1 else 's'} of "
            label = f"after {'' if ended else part}{phase.label}"
            found.append(Stage(label, step, figures))
    return found


def compare_stages(record: Record, task: str) -> Comparison | None:
    """The last two stages, answer by answer; None where there are no two, or their answers were not kept."""
    known = find_stages(record, task)
    if len(known) < 2:
        return None
    before, after = known[-2:]
    pairs = pair_answers(record.answers(before.step, task), record.answers(after.step, task))
    return Comparison(before, after, pairs) if pairs else None


def find_control_stage(record: Record, task: str) -> Stage | None:
    """The control's last evaluation; None while it has measured nothing but where it began."""
    found = find_stages(record.control, task)[-1:] if record.control else []
    return next((stage for stage in found if stage.label != START), None)


def build_arms(record: Record, task: str) -> Arms | None:
    """RL and its control; None where one of them has not been measured."""
    other, arm = record.control, find_control_stage(record, task)
    phase = next((phase for phase in record.phases if phase.online), None)
    end = next((stage for stage in find_stages(record, task)[-1:] if phase and stage.step > phase.begin), None)
    if other is None or arm is None or phase is None or end is None:
        return None
    rows = [row for each in other.phases for row in each.rows if row["step"] <= arm.step]
    seconds = sum(read_number(row.get("time/step")) or 0.0 for row in rows)
    whole = all(each.is_complete for each in (*other.phases, phase))
    pairs = pair_answers(other.answers(arm.step, task), record.answers(end.step, task))
    return Arms(arm, end, phase, whole, seconds, pairs)


def do_overlap(ours: Row, theirs: Row) -> bool:
    """Whether two intervals have a point in common."""
    return bool(ours["ci_lo"] <= theirs["ci_hi"] and theirs["ci_lo"] <= ours["ci_hi"])


def count_transitions(pairs: Pairs) -> Counter[tuple[bool, bool]]:
    """How many problems were right or wrong before, and right or wrong after."""
    return Counter((bool(before["correct"]), bool(after["correct"])) for before, after in pairs)


def pair_answers(before: Mapping[tuple[str, int], Row], after: Mapping[tuple[str, int], Row]) -> Pairs:
    """The answers to the problems that both were asked."""
    return [(row, after[key]) for key, row in before.items() if key in after]
