"""Compare two arms of several runs, which differ only in their seeds: the difference over problems and seeds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qed.errors import UsageError
from qed.evaluation.arms import compare_arms
from qed.runs.run import Row
from qed.viewer.comparing import adjust_p_values, read_measure
from qed.viewer.evaluations import find_rows, load_evaluation_index, load_evaluations
from qed.viewer.library import Library, RunPlace
from qed.viewer.outcomes import build_rows
from qed.viewer.params import Params, Refused

MAX_RUNS = 24  # of both arms


def compare_seeds(library: Library, params: Params) -> dict[str, Any]:
    """Compare the last evaluations of two arms of runs; a run that an arm names twice counts once.

    Args:
        library: the runs.
        params: `a` and `b`, the keys of each arm's runs, one on each line; `measure` for one other than the accuracy.

    Raises:
        Refused: there are too many runs, no such run or measure, or a run is in both arms.
    """
    names = [params.text(side).split("\n") for side in ("a", "b")]
    if sum(map(len, names)) > MAX_RUNS:
        raise Refused(400, f"More than {MAX_RUNS} runs cannot be compared at once.")
    arms = [list(dict.fromkeys(library.find(key) for key in own)) for own in names]
    _require_other_runs(*arms)
    measure = read_measure(params)
    evaluated = {place: _list_last(place) for arm in arms for place in arm}
    tasks: list[dict[str, Any]] = []
    for name in [name for name in evaluated[arms[0][0]] if all(name in own for own in evaluated.values())]:
        before, after = ([_load_rows(library, place, evaluated[place][name], *name) for place in arm] for arm in arms)
        try:
            test = compare_arms(before, after, measure)
        except UsageError:
            continue  # fewer answers than the measure needs
        if test is not None:
            described = {**asdict(test), "difference": test.difference}
            tasks.append({"task": name[0], "decoding": name[1], "test": described})
    adjust_p_values([task["test"] for task in tasks])
    a, b = ([place.key for place in arm] for arm in arms)
    return {"a": a, "b": b, "tasks": tasks}


def _require_other_runs(before: list[RunPlace], after: list[RunPlace]) -> None:
    """Raise if a run is in both arms, unless a single run is compared with itself."""
    shared = [place.key for place in before if place in after]
    if shared and len(before) + len(after) > 2:
        raise Refused(400, f"The run {shared[0]} is in both arms. Leave it out of one of them.")


def _list_last(place: RunPlace) -> dict[tuple[str, str], int]:
    """Return the last step of each task and decoding whose answers are stored."""
    return {each.name: each.step for each in load_evaluations(place) if find_rows(place, each.step, each.task)}


def _load_rows(library: Library, place: RunPlace, step: int, task: str, decoding: str) -> list[Row]:
    index = load_evaluation_index(library, place, step, task)
    return build_rows(index, decoding) if index is not None else []
