"""The answers of a run that a person should read first: those that the rules flag, and the run's alarms."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from qed.runs.step_index import StepIndex
from qed.viewer.details import find_answers, list_alarms, list_answer_steps
from qed.viewer.duplicates import find_duplicates
from qed.viewer.inspecting import MIN_RARE, MIN_REPETITION, MIN_TOKENS, Flagged, Inspected, inspect_step
from qed.viewer.library import Library, RunPlace
from qed.viewer.memo import FileMemo
from qed.viewer.outcomes import load_index
from qed.viewer.params import MOST_NUMBER, Params

DEFAULT_STEPS = 50
MAX_STEPS = 200
SECONDS = 20.0  # for one reply; a folder without indexes needs several replies
INSPECTED = FileMemo(MAX_STEPS)
KINDS = {
    "format_without_answer": (
        "Format without answer",
        "Wrong answers that follow the format, and so may earn a reward for it, but have no final answer to compare.",
    ),
    "reward_without_correct": (
        "Reward without correctness",
        "Wrong answers that earn more than half of the step's reward range, or more than its right answers on average.",
    ),
    "repetition": (
        "Loops and repetition",
        f"Texts in which at least {MIN_REPETITION:.0%} of the runs of 8 tokens occurred earlier in the same text.",
    ),
    "garbled": (
        "Garbled text",
        f"Texts in which at least {MIN_RARE:.0%} of the sampled tokens had a probability below 1 %.",
    ),
    "zero_spread": (
        "Groups without signal",
        "Problems whose answers all earn the same reward, so that the group has no training signal.",
    ),
    "truncated": ("Cut off", "Answers that reached the token limit before they ended."),
    "grader_timeout": (
        "Not graded",
        "Answers on which the grader timed out or failed; they count neither as right nor as wrong.",
    ),
    "near_duplicate": (
        "Near duplicates",
        "Answers that nearly equal a demonstration or an answer to another problem in these steps; only texts of at "
        f"least {MIN_TOKENS} tokens.",
    ),
}


def find_suspects(library: Library, params: Params) -> dict[str, Any]:
    """Return what the rules flag in the steps `first` to `last`, by default the last 50 that have saved answers.

    At most the last MAX_STEPS steps are read, for at most SECONDS; `complete` is false if steps are left out, and the
    next request continues with the indexes that this one built.

    Args:
        library: the runs.
        params: `run`, `first`, `last`.
    """
    place = library.find(params.text("run"))
    steps = _choose_steps(list_answer_steps(place), params)
    inspected = _inspect_steps(library, place, steps[-MAX_STEPS:])
    read = [each.step for each in inspected]
    first, last = min(read, default=0), max(read, default=0)
    return {
        "kinds": _merge(inspected),
        "first": first,
        "last": last,
        "n_steps": len(read),
        "n_answers": sum(each.n_answers for each in inspected),
        "alarms": [alarm for alarm in list_alarms(place) if _is_between(alarm["step"], first, last)],
        "complete": len(read) == len(steps),
    }


def _is_between(step: Any, first: int, last: int) -> bool:
    return not isinstance(step, int) or first <= step <= last or first == last == 0


def _choose_steps(steps: Sequence[int], params: Params) -> list[int]:
    """Return the requested steps."""
    if "first" not in params and "last" not in params:
        return list(steps[-DEFAULT_STEPS:])
    low, high = params.number("first", 0), params.number("last", MOST_NUMBER)
    return [step for step in steps if low <= step <= high]


def _inspect_steps(library: Library, place: RunPlace, steps: Sequence[int]) -> list[Inspected]:
    """Inspect steps, the last one first, until the time is up; steps whose files are damaged or gone are skipped."""
    end = time.monotonic() + SECONDS
    inspected: list[Inspected] = []
    for step in reversed(steps):
        if inspected and time.monotonic() > end:
            break
        if data := find_answers(place, step):
            inspect = partial(_inspect_step, library, data, step)
            inspected.append(INSPECTED.read((data, step), [data], inspect))
    return inspected[::-1]


def _inspect_step(library: Library, data: Path, step: int) -> Inspected:
    return inspect_step(load_index(library, data) or StepIndex(0, [], {}), step)


def _merge(inspected: Sequence[Inspected]) -> list[dict[str, Any]]:
    """Merge what was found in each step, kind by kind."""
    kinds: list[dict[str, Any]] = []
    for kind, (label, about) in KINDS.items():
        if kind == "near_duplicate":
            flagged = find_duplicates([each.texts for each in inspected])
        else:
            flagged = Flagged()
            for each in inspected:
                flagged.extend(each.flagged[kind].answers, each.flagged[kind].count)
        items = [each.describe() for each in flagged.answers]
        kinds.append({"kind": kind, "label": label, "about": about, "count": flagged.count, "items": items})
    return kinds
