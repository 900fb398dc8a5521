"""Pair the tasks of two arms, and collect warnings about differences between them other than the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qed.errors import DataError
from qed.evaluation import stored
from qed.evaluation.cautions import list_cautions, separate_golds
from qed.evaluation.compared_runs import Answers, Arm, Decoding
from qed.evaluation.estimators import list_budgets
from qed.evaluation.measures import ACCURACY
from qed.runs.run import Row

Tasks = dict[str, dict[str, list[Decoding]]]  # by task and decoding: that of each run
Name = tuple[str, str]  # of a task and a decoding


@dataclass(frozen=True)
class TaskPair:
    """A task that both arms have: its name with the decodings, the answers of each run, and warnings."""

    name: str
    before: list[Decoding]
    after: list[Decoding]
    warnings: list[str]

    @property
    def is_single(self) -> bool:
        """Return whether each arm is one run."""
        return len(self.before) == len(self.after) == 1


def pair_tasks(before: Arm, after: Arm) -> Iterator[TaskPair]:
    """Yield the tasks and decodings that all runs of both arms have.

    Raises:
        DataError: the runs of an arm, or the arms, have no decoding of a task in common.
    """
    old, new = find_tasks(before), find_tasks(after)
    names = list(_match(old, new))
    if not names:
        raise DataError(
            f"The arms have no decoding of a task in common: {before.name} has {_list_decodings(old)}; {after.name} "
            f"has {_list_decodings(new)}."
        )
    for (task, one), (there, other) in names:
        first = old[task][one]
        parts, notes = separate_golds([*first, *new[there][other]])
        sides = parts[: len(first)], parts[len(first) :]
        warnings = [*list_cautions(*sides), *notes]
        if len(before.places) == len(after.places) == 1 and (before.is_pattern or after.is_pattern):
            warnings.append("Each arm is one run: the interval covers the choice of problems, not of seeds.")
        yield TaskPair(_name_pair(task, one, other), *sides, warnings)


def _match(old: Tasks, new: Tasks) -> Iterator[tuple[Name, Name]]:
    """Yield the pairs of names, one per side, of the decodings to compare.

    If each side has a single task, these are paired even with different names, as files of answers have; likewise
    single decodings of a task.
    """
    single = len(old) == len(new) == 1
    for task, own in old.items():
        there = next(iter(new)) if single else task
        others = new.get(there, {})
        names = [(name, name) for name in own if name in others]
        if not names and len(own) == len(others) == 1:
            names = [(next(iter(own)), next(iter(others)))]
        yield from (((task, one), (there, other)) for one, other in names)


def list_unmatched(before: Arm, after: Arm) -> list[str]:
    """Return sentences on the decodings that all runs of one arm have, but not all runs of the other."""
    arms, sides = (before, after), (find_tasks(before), find_tasks(after))
    matched = list(_match(*sides))
    lines = []
    for number, (arm, other) in enumerate((arms, arms[::-1])):
        partly = {name for run in other.runs for name in _list_own(_rename(run, other))}
        for name in _list_own(sides[number]):
            if name not in {pair[number] for pair in matched}:
                where = f"not in all runs of {other.name}" if name in partly else f"in {arm.name} alone"
                lines.append(f"{name_decoding(*name)} is {where}, and left out.")
    return lines


def _list_own(tasks: Tasks | Answers) -> list[Name]:
    return [(task, decoding) for task, own in tasks.items() for decoding in own]


def _list_decodings(tasks: Tasks) -> str:
    return "; ".join(name_decoding(*name) for name in _list_own(tasks))


def find_tasks(arm: Arm) -> Tasks:
    """Return the tasks and decodings that all runs of an arm have.

    Raises:
        DataError: they have none in common.
    """
    runs = [_rename(answers, arm) for answers in arm.runs]
    tasks = {
        task: {
            name: [run[task][name] for run in runs] for name in own if all(name in run.get(task, {}) for run in runs)
        }
        for task, own in runs[0].items()
    }
    tasks = {task: own for task, own in tasks.items() if own}
    if not tasks:
        listed = "; ".join(
            f"{place} has {', '.join(run)}" for place, run in zip(arm.places[:4], arm.runs, strict=False)
        )
        raise DataError(f"The runs of {arm.name} have no task in common: {listed}.")
    return tasks


def list_left_out(arm: Arm) -> list[str]:
    """Return sentences on the tasks that only some runs of an arm have."""
    kept = find_tasks(arm)
    names = dict.fromkeys(task for run in arm.runs for task in _rename(run, arm))
    return [f"{task} is not in all runs of {arm.name}, and left out." for task in names if task not in kept]


def count_answers(evaluations: Sequence[Sequence[Row]]) -> int:
    """Return the smallest number of answers to a shared problem; 0 if the evaluations share no problem."""
    counts = [Counter(str(row["group_id"]) for row in rows) for rows in evaluations]
    shared = set.intersection(*(set(own) for own in counts))
    return min((own[problem] for own in counts for problem in shared), default=0)


def list_measures(answers: int) -> list[str]:
    """Return the measures by which evaluations with so many answers per problem can be compared."""
    budgets = [k for k in list_budgets(answers) if k > 1]
    return [ACCURACY, *(f"{kind}@{k}" for kind in ("pass", "maj") for k in budgets)]


def _rename(answers: Answers, arm: Arm) -> Answers:
    """Return the answers of a run, treating single files as the same task, whatever their names.

    The same holds for folders into each of which `qed evaluate --responses` has scored a single file.
    """
    scored = all([list(own) for own in run.values()] == [[stored.DECODING]] for run in arm.runs)
    if len(answers) == 1 and (scored or all(place.is_file() for place in arm.places)):
        return {next(iter(arm.runs[0])): next(iter(answers.values()))}
    return answers


def name_decoding(task: str, decoding: str) -> str:
    """Return the name of a task with its decoding; stored answers have no decoding name."""
    return task if decoding == stored.DECODING else f"{task}, {decoding}"


def _name_pair(task: str, before: str, after: str) -> str:
    return name_decoding(task, before) if before == after else f"{task}, {before} against {after}"
