"""One problem through training: its pass rate at every step and evaluation, and what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from qed.errors import DataError
from qed.guards.redaction import redact
from qed.runs.run import Row
from qed.runs.step_index import read_group
from qed.viewer.cleaning import redact_texts
from qed.viewer.details import find_answers
from qed.viewer.evaluations import find_rows
from qed.viewer.histories import History, Visit, open_history
from qed.viewer.inspecting import WRITTEN
from qed.viewer.library import Library, RunPlace
from qed.viewer.outcomes import load_index
from qed.viewer.params import Params, Refused
from qed.viewer.texts import build_answer_pieces, build_pieces, cut_text

MAX_PROBLEMS = 10_000
MAX_QUESTION = 160
MAX_DEMONSTRATION_STEPS = 20  # steps that are searched for a demonstration
LEARNED = 0.5  # share of right answers from which a problem counts as learned


def list_problems(library: Library, params: Params) -> dict[str, Any]:
    """List the problems of a run with their share of right answers, first and last.

    At most MAX_PROBLEMS are listed, those seen most often; `n` counts all. `complete` is false while there are steps
    to read: the next request continues.

    Args:
        library: the runs.
        params: `run`.
    """
    place = library.find(params.text("run"))
    with open_history(library, place) as history:
        return {"problems": _summarize(history), "n": len(history.problems), "complete": history.complete}


def _summarize(history: History) -> list[dict[str, Any]]:
    """Return a row for each problem, those with the most visits first."""
    number, step, series, n, right = (history.read(name) for name in ("problem", "step", "series", "n", "n_right"))
    if not len(number):
        return []
    order = np.lexsort((series == 0, step, number))  # by problem, then by step, evaluations first
    number, step, series, n, right = (column[order] for column in (number, step, series, n, right))
    begins = np.flatnonzero(np.diff(number, prepend=-1))
    ends = np.append(begins[1:], len(number)) - 1
    trained = np.add.reduceat(series == 0, begins)
    visits = ends - begins + 1
    never = np.iinfo(np.int64).max
    first_right = np.minimum.reduceat(np.where(right > 0, step, never), begins)
    graded = np.flatnonzero(n > 0)
    rate = [None, *(right[graded] / n[graded]).tolist()]
    # Where the first and the last visit with graded answers are in `rate`; 0 if a problem has none.
    first, last = np.searchsorted(graded, begins) + 1, np.searchsorted(graded, ends, side="right")
    first, last = (np.where(first <= last, place, 0) for place in (first, last))
    names = list(history.problems)
    chosen = np.argsort(-visits, kind="stable")[:MAX_PROBLEMS].tolist()
    questions = redact_texts([history.about[number[begins[at]]]["question"] for at in chosen])
    return [
        {
            "id": names[number[begins[at]]],
            "question": question[:MAX_QUESTION],
            "n_training": int(trained[at]),
            "n_evaluations": int(visits[at] - trained[at]),
            "first_rate": rate[first[at]],
            "last_rate": rate[last[at]],
            "first_right": None if first_right[at] == never else int(first_right[at]),
        }
        for at, question in zip(chosen, questions, strict=True)
    ]


def describe_problem(library: Library, params: Params) -> dict[str, Any]:
    """Return one problem through training: its groups by step, when it was first right, and when it was forgotten.

    Args:
        library: the runs.
        params: `run`, and `id` of the problem.

    Raises:
        Refused: the run has no answer to it in the steps read so far.
    """
    place, name = library.find(params.text("run")), params.text("id")
    with open_history(library, place) as history:
        visits, complete = history.list_visits(name), history.complete
        about = history.about[history.problems[name]] if visits else {}
    if not visits:
        more = "" if complete else " Its steps are still being read: try again."
        raise Refused(404, f"The run {place.key} has no saved answer to the problem {name}.{more}")
    about = {**about, **_read_problem(library, place, visits)}
    question, gold = (
        cut_text(redact(str(about["question"])))[0],
        "" if about["gold"] is None else redact(str(about["gold"])),
    )
    first = find_first_right(visits)
    return {
        "id": name,
        "question": question,
        "question_pieces": build_pieces(question),
        "gold": gold,
        "gold_pieces": build_answer_pieces(gold),
        "training": [_describe_visit(visit) for visit in visits if visit.is_training],
        "evaluations": [_describe_visit(visit) for visit in visits if not visit.is_training],
        "first_right": _describe_visit(first) if first else None,
        "forgotten": [_describe_visit(visit) for visit in find_forgotten(visits)],
        "demonstration": _find_demonstration(library, place, visits),
        "complete": complete,
    }


def _read_problem(library: Library, place: RunPlace, visits: Sequence[Visit]) -> Row:
    """Return the whole question and answer, of which an index has only the beginning; empty if they are gone."""
    for row in _read_answers(library, place, visits[0]):
        return {name: row[name] for name in ("question", "gold") if row.get(name) is not None}
    return {}


def _read_answers(library: Library, place: RunPlace, visit: Visit) -> list[Row]:
    """Read the answers of a visit; none if they are damaged or gone."""
    data = find_answers(place, visit.step) if visit.is_training else find_rows(place, visit.step, visit.task)
    index = load_index(library, data) if data else None
    if data is None or index is None or visit.group >= len(index.groups):
        return []
    try:
        return read_group(data, index, visit.group)
    except (DataError, OSError):
        return []


def _describe_visit(visit: Visit) -> dict[str, Any]:
    """Describe a visit; one in training has no task and no decoding."""
    known = {"step": visit.step, "group": visit.group, "n": visit.n, "n_right": visit.n_right}
    where = {} if visit.is_training else {"task": visit.task, "decoding": visit.decoding}
    return {**known, **where, "reward_mean": visit.reward_mean}


def _find_demonstration(library: Library, place: RunPlace, visits: Sequence[Visit]) -> str | None:
    """Return the first demonstration among the answers of the first steps that trained on the problem."""
    for visit in [visit for visit in visits if visit.is_training][:MAX_DEMONSTRATION_STEPS]:
        data = find_answers(place, visit.step)
        index = load_index(library, data) if data else None
        columns = index.columns if index else {}
        rows = zip(columns.get("group", ()), columns.get("source", ()), strict=False)
        if any(group == visit.group and source in WRITTEN for group, source in rows):
            for row in _read_answers(library, place, visit):
                if row.get("source") in WRITTEN:
                    return cut_text(redact(str(row.get("text") or "")))[0]
    return None


def find_first_right(visits: Sequence[Visit]) -> Visit | None:
    """Return the first visit with a right answer."""
    return next((visit for visit in visits if visit.n_right), None)


def find_forgotten(visits: Sequence[Visit]) -> list[Visit]:
    """Return the visits at which a learned problem was forgotten.

    A problem is learned at a step if at least half of its answers are right. It is forgotten at the first later step of
    the same series (training, or one decoding of one task) with no right answer, and may be learned and forgotten
    again.
    """
    learned: set[tuple[str, str]] = set()
    forgotten: list[Visit] = []
    for (_, series), same in groupby(visits, lambda visit: (visit.step, visit.series)):
        first, *others = same
        n, right = (sum(getattr(visit, name) for visit in (first, *others)) for name in ("n", "n_right"))
        if n and right >= LEARNED * n:
            learned.add(series)
        elif n and not right and series in learned:
            learned.remove(series)
            forgotten.append(first)
    return forgotten
