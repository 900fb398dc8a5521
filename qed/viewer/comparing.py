"""Compare two runs, or two steps of one, problem by problem: a paired test for each task, and the changed problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qed.errors import UsageError
from qed.evaluation.cautions import count_truncated, describe_lost, list_cautions
from qed.evaluation.compared_runs import Decoding, build_decoding, describe_training
from qed.evaluation.compared_tasks import count_answers, list_measures
from qed.evaluation.intervals import adjust_holm
from qed.evaluation.measures import ACCURACY, parse_measure
from qed.evaluation.paired import Change, PairedTest, compare_paired
from qed.guards.redaction import redact
from qed.report.pairs import format_note
from qed.runs.run import Row
from qed.viewer.cards import build_card
from qed.viewer.cleaning import clean_value
from qed.viewer.details import list_settings, load_settings
from qed.viewer.evaluations import find_rows, load_evaluation_index, load_evaluations
from qed.viewer.library import Library, RunPlace
from qed.viewer.outcomes import KINDS, build_rows, number_groups, split_rows
from qed.viewer.params import Params, Refused

MAX_CHANGES = 1_000  # problems of each kind of change
MAX_VALUES = 60  # of one breakdown, such as the subjects
MAX_QUESTION = 300


@dataclass(frozen=True)
class Pair:
    """A task and decoding that both runs evaluated with stored answers, and the steps of these evaluations."""

    task: str
    decoding_a: str
    decoding_b: str
    steps_a: list[int]
    steps_b: list[int]


def compare_runs(library: Library, params: Params) -> dict[str, Any]:
    """Compare the last evaluations of two runs, or those of chosen steps; of one run, by default its first and last.

    Args:
        library: the runs.
        params: `a`, `b`, `measure` for a measure other than the accuracy, and `step_a`, `step_b` for steps other than
            the last.
    """
    a, b = library.find(params.text("a")), library.find(params.text("b"))
    measure = read_measure(params)
    tasks, skipped = [], []
    for pair in _pair_evaluations(a, b):
        steps = _choose_steps(pair, params, a == b)
        task = _compare_pair(library, (a, b), pair, steps, measure) if steps else None
        if task:
            tasks.append(task)
        else:
            reason = f"no common problem with answers for {measure}" if steps else "not evaluated at this step"
            skipped.append({"task": pair.task, "decoding": pair.decoding_a, "reason": reason})
    adjust_p_values([task["test"] for task in tasks])
    return {
        "a": build_card(library, a),
        "b": build_card(library, b),
        "settings": compare_settings(a, b),
        "tasks": tasks,
        "skipped": skipped,
        "note": format_note(len(tasks), one_run=a == b),
    }


def compare_settings(a: RunPlace, b: RunPlace) -> list[dict[str, Any]]:
    """List the settings that differ; null if a run lacks one."""
    one, other = ({each["key"]: each["value"] for each in list_settings(place)} for place in (a, b))
    return [
        {"key": key, "a": one.get(key), "b": other.get(key)}
        for key in dict.fromkeys([*one, *other])
        if one.get(key) != other.get(key)
    ]


def read_measure(params: Params) -> str:
    """Return the requested measure, by default the accuracy.

    Raises:
        Refused: there is no such measure.
    """
    measure = params.text("measure", ACCURACY)
    try:
        parse_measure(measure)
    except UsageError as error:
        raise Refused(400, str(error)) from error
    return measure


def adjust_p_values(tests: Sequence[dict[str, Any]]) -> None:
    """Add to tests that are read together their p-values adjusted for the number of tests."""
    for test, p_holm in zip(tests, adjust_holm([test["p_value"] for test in tests]), strict=True):
        test["p_holm"] = p_holm


def _pair_evaluations(a: RunPlace, b: RunPlace) -> Iterator[Pair]:
    """Pair the decodings of each task that both runs have; single decodings are paired even if their names differ."""
    one, other = _list_steps(a), _list_steps(b)
    for task in dict.fromkeys(task for task, _ in one):
        old, new = ([decoding for name, decoding in steps if name == task] for steps in (one, other))
        shared = [(decoding, decoding) for decoding in old if decoding in new]
        if not shared and len(old) == len(new) == 1:
            shared = [(old[0], new[0])]
        for names in shared:
            yield Pair(task, *names, one[task, names[0]], other[task, names[1]])


def _list_steps(place: RunPlace) -> dict[tuple[str, str], list[int]]:
    """Return the steps of each task and decoding whose answers are stored."""
    steps: dict[tuple[str, str], list[int]] = {}
    for each in load_evaluations(place):
        if find_rows(place, each.step, each.task):
            steps.setdefault(each.name, []).append(each.step)
    return steps


def _choose_steps(pair: Pair, params: Params, is_same: bool) -> tuple[int, int] | None:
    """Return the steps to compare; None if a requested one has no answers."""
    first = pair.steps_a[0] if is_same else pair.steps_a[-1]
    step_a, step_b = params.number("step_a", first), params.number("step_b", pair.steps_b[-1])
    return (step_a, step_b) if step_a in pair.steps_a and step_b in pair.steps_b else None


def _compare_pair(
    library: Library, places: tuple[RunPlace, RunPlace], pair: Pair, steps: tuple[int, int], measure: str
) -> dict[str, Any] | None:
    """Compare two evaluations of a task; None if they have no answers to the same problems."""
    indexes = [
        load_evaluation_index(library, place, step, pair.task) for place, step in zip(places, steps, strict=True)
    ]
    old, new = indexes
    if old is None or new is None:
        return None
    before, after = build_rows(old, pair.decoding_a), build_rows(new, pair.decoding_b)
    answers = count_answers([before, after])
    test = compare_paired(before, after, measure) if answers >= max(1, parse_measure(measure)[1]) else None
    if test is None:
        return None
    by = list(_compare_kinds(before, after, measure))
    adjust_p_values(by)
    names = [(step, pair.task, name) for step, name in zip(steps, (pair.decoding_a, pair.decoding_b), strict=True)]
    figures = [_find_figures(place, name) for place, name in zip(places, names, strict=True)]
    sides = [_describe_side(*each) for each in zip(places, (before, after), figures, strict=True)]
    lost = [describe_lost(len(side.rows), figure) for side, figure in zip(sides, figures, strict=True)]
    cautions = list_cautions(sides[:1], sides[1:])
    numbers = number_groups(old, pair.decoding_a), number_groups(new, pair.decoding_b)
    return {
        "task": pair.task,
        "decoding": pair.decoding_a,
        "decoding_b": pair.decoding_b,
        "step_a": steps[0],
        "step_b": steps[1],
        "steps_a": pair.steps_a,
        "steps_b": pair.steps_b,
        "test": {**_describe_test(test), "unpaired": test.unpaired, "test": test.test, "measure": measure},
        "measures": list_measures(answers),
        "warnings": [*(f"{side}: {text}" for side, text in zip("AB", lost, strict=True) if text), *cautions],
        "truncated": {"a": count_truncated(sides[:1]), "b": count_truncated(sides[1:])},
        "by": by,
        "by_note": format_note(len(by), one_run=places[0] == places[1]) if by else "",
        "n_gained": len(test.gained),
        "n_lost": len(test.lost),
        "gained": [_describe_change(change, old.groups, numbers) for change in test.gained[:MAX_CHANGES]],
        "lost": [_describe_change(change, old.groups, numbers) for change in test.lost[:MAX_CHANGES]],
    }


def _find_figures(place: RunPlace, name: tuple[int, str, str]) -> Row:
    """Return the summary of an evaluation by its step, task and decoding; empty if there is none."""
    found = (each.figures for each in load_evaluations(place) if (each.step, each.task, each.decoding) == name)
    return next(found, {})


def _describe_side(place: RunPlace, rows: list[Row], figures: Row) -> Decoding:
    """Return the answers of a side with the settings that determined them."""
    trained = clean_value(describe_training(load_settings(place)))
    return build_decoding(rows, figures, trained)


def _describe_test(test: PairedTest) -> dict[str, Any]:
    names = ("n", "before", "after", "difference", "ci_lo", "ci_hi", "p_value", "note")
    return {name: getattr(test, name) for name in names}


def _compare_kinds(before: Sequence[Row], after: Sequence[Row], measure: str) -> Iterator[dict[str, Any]]:
    """Yield the test of each subject, level and source, if there are several."""
    for kind, label in KINDS.items():
        old, new = split_rows(before, kind), split_rows(after, kind)
        shared = [value for value in old if value in new]
        for value in shared[:MAX_VALUES] if len(shared) > 1 else ():
            if test := compare_paired(old[value], new[value], measure):
                yield {"kind": label, "value": value, **_describe_test(test)}


def _describe_change(
    change: Change, groups: Sequence[Row], numbers: tuple[dict[str, int], dict[str, int]]
) -> dict[str, Any]:
    """Describe a problem that changed, with its group numbers for links."""
    group = groups[numbers[0][change.problem]]
    return {
        "problem": change.problem,
        "question": redact(str(group.get("question") or ""))[:MAX_QUESTION],
        "gold": None if group.get("gold") is None else redact(str(group["gold"])),
        "before": change.before,
        "after": change.after,
        "group_a": numbers[0][change.problem],
        "group_b": numbers[1][change.problem],
    }
