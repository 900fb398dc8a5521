"""The evaluations of a run: a list of them, and all figures of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.evaluation.cautions import count_expected
from qed.evaluation.summary import compute_accuracy, group_by_problem
from qed.report.estimates import compute_bounds
from qed.report.numbers import read_number
from qed.report.record import REQUIRED
from qed.runs.manifest import parse_step
from qed.runs.run import Row, name_step_folder
from qed.runs.step_index import StepIndex
from qed.viewer.cleaning import clean_value
from qed.viewer.library import Library, RunPlace
from qed.viewer.memo import FileMemo
from qed.viewer.outcomes import build_rows, load_index, split_rows
from qed.viewer.params import Params, Refused
from qed.viewer.replies import find_neighbours
from qed.viewer.run_files import find_file, list_folder, read_object

SUMMARIES = FileMemo(4096)


@dataclass(frozen=True)
class Evaluation:
    """The figures of one decoding of a task at a step."""

    step: int
    task: str
    decoding: str
    figures: Row

    @property
    def name(self) -> tuple[str, str]:
        """Return the task and the decoding."""
        return self.task, self.decoding


def load_evaluations(place: RunPlace) -> list[Evaluation]:
    """Return the evaluations of a run by step, in the order of their summaries; damaged ones are skipped."""
    return [evaluation for step in list_steps(place) for evaluation in _load_step(place, step)]


def list_steps(place: RunPlace) -> list[int]:
    """Return the steps with an evaluation folder, in order."""
    return sorted({step for name in list_folder(place, "eval") if (step := parse_step(name)) is not None})


def _load_step(place: RunPlace, step: int) -> list[Evaluation]:
    path = find_file(place, name_step_folder(step), "summary.json")
    return [] if path is None else SUMMARIES.read((path, step), [path], lambda: _read_summary(place, step))


def _read_summary(place: RunPlace, step: int) -> list[Evaluation]:
    return [
        Evaluation(step, str(task), str(decoding), clean_value(figures))
        for task, decodings in read_object(place, name_step_folder(step), "summary.json").items()
        if isinstance(decodings, Mapping)
        for decoding, figures in decodings.items()
        if isinstance(figures, Mapping) and all(read_number(figures.get(name)) is not None for name in REQUIRED)
    ]


def list_accuracies(place: RunPlace) -> list[dict[str, Any]]:
    """Return the step, task, decoding and accuracy of each evaluation, with the accuracy's interval."""
    return [
        {
            "step": each.step,
            "task": each.task,
            "decoding": each.decoding,
            **{name: each.figures[name] for name in REQUIRED},
        }
        for each in load_evaluations(place)
    ]


def list_evaluations(library: Library, params: Params) -> dict[str, Any]:
    """List the evaluations of a run with their figures, without the long tables by subject.

    Args:
        library: the runs.
        params: `run`.
    """
    place = library.find(params.text("run"))
    return {
        "evaluations": [
            {
                "step": each.step,
                "task": each.task,
                "decoding": each.decoding,
                "figures": {name: value for name, value in each.figures.items() if name != "by"},
                "rows": find_rows(place, each.step, each.task) is not None,
            }
            for each in load_evaluations(place)
        ]
    }


def find_rows(place: RunPlace, step: int, task: str) -> Path | None:
    """Return the file with the answers of an evaluation; None if they were not stored. The task is a file name."""
    return None if "/" in task else find_file(place, name_step_folder(step), f"{task}.jsonl")


def describe_evaluation(library: Library, params: Params) -> dict[str, Any]:
    """Return all figures of one decoding of a task at a step.

    Args:
        library: the runs.
        params: `run`, `step`, `task`, `decoding`.

    Raises:
        Refused: there is no such evaluation.
    """
    place = library.find(params.text("run"))
    step, name = params.number("step"), (params.text("task"), params.text("decoding"))
    series = [each for each in load_evaluations(place) if each.name == name]
    found = next((each for each in series if each.step == step), None)
    if found is None:
        raise Refused(404, f"The run {place.key} has no evaluation of {name[0]} ({name[1]}) at step {step}.")
    steps = [each.step for each in series]
    measured = _measure_rows(library, place, found)
    is_cut = measured["rows"] and measured["stored"] < count_expected(found.figures)
    if is_cut:
        measured = {**measured, **_measure_answers([])}
    votes = {kind: found.figures.get(kind) or {} for kind in ("pass", "maj")}
    return {
        "figures": {key: value for key, value in found.figures.items() if key != "by"},
        "classes": found.figures.get("classes") or {},
        "by": found.figures.get("by") or {},
        "votes": {"k": found.figures.get("k", 1), **votes, "problems": measured["problems"]},
        **{name: measured[name] for name in ("bounds", "cross", "rows")},
        "lost": {"stored": measured["stored"], "of": count_expected(found.figures)} if is_cut else None,
        **find_neighbours(steps, steps.index(step)),
    }


def _measure_rows(library: Library, place: RunPlace, evaluation: Evaluation) -> dict[str, Any]:
    """Return figures of the stored answers that the summary lacks; computed once, because it takes a while."""
    file = find_rows(place, evaluation.step, evaluation.task)
    data = file or place.folder

    def compute() -> dict[str, Any]:
        index = load_index(library, data) if file else None
        rows = build_rows(index, evaluation.decoding) if index else []
        return {**_measure_answers(rows), "stored": len(rows), "rows": index is not None}

    measured: dict[str, Any] = library.memo.read(("evaluation", data, evaluation.decoding), [data], compute)
    return measured


def _measure_answers(rows: Sequence[Row]) -> dict[str, Any]:
    return {"bounds": _list_bounds(rows), "cross": _cross_kinds(rows), "problems": _count_problems(rows)}


def _list_bounds(rows: Sequence[Row]) -> dict[str, list[float] | None]:
    """Return the interval of each measure, null if all values are equal; an index has no measure of thinking."""
    return {
        name: list(bounds.ends) if bounds.ends else None
        for name, bounds in compute_bounds(rows).items()
        if not name.startswith("reasoning")
    }


def _cross_kinds(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the accuracy of each subject at each level."""
    cells: list[dict[str, Any]] = []
    for subject, own in split_rows(rows, "subject").items():
        for level, part in split_rows(own, "level").items():
            figures = compute_accuracy(list(group_by_problem(part).values()))
            cell = {"right": figures["accuracy"], "lo": figures["ci_lo"], "hi": figures["ci_hi"]}
            cells.append({"subject": subject, "level": level, "n": figures["n"], **cell})
    return cells


def _count_problems(rows: Sequence[Row]) -> list[dict[str, int]]:
    """Return how many problems have how many right answers."""
    shares = Counter((sum(row["correct"] for row in own), len(own)) for own in group_by_problem(rows).values())
    return [{"right": right, "n": n, "problems": count} for (right, n), count in sorted(shares.items())]


def load_evaluation_index(library: Library, place: RunPlace, step: int, task: str) -> StepIndex | None:
    """Return the index of the stored answers of an evaluation; None if there are none."""
    data = find_rows(place, step, task)
    return load_index(library, data) if data else None
