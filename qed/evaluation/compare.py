"""Compare two evaluations of the same problems, task by task: `qed compare A B`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qed.console.live import Console
from qed.errors import DataError
from qed.evaluation import stored
from qed.evaluation.paired import Change, PairedTest, compare_paired
from qed.evaluation.summary import group_by_problem
from qed.runs.run import Row, name_step_folder, read_evaluations, read_lines

SHOWN = 3  # problems of each kind of change
LONGEST = 200  # characters of a question or an answer
Answers = dict[str, dict[str, list[Row]]]  # by task and decoding


@dataclass(frozen=True)
class TaskPair:
    """One task of both evaluations; `decodings` are those of the first and of the second."""

    task: str
    decodings: tuple[str, str]
    before: list[Row]
    after: list[Row]
    found: PairedTest


def compare(before: Path, after: Path, scoring: stored.Scoring, console: Console) -> dict[str, Any]:
    """Show the paired tests of two evaluations.

    Returns:
        for each task the figures of the test, with the ids of the problems that changed.

    Raises:
        DataError: one of them holds no evaluation, or they have no problem in common.
    """
    compared = list(_pair_tasks(load_answers(before, scoring), load_answers(after, scoring)))
    if not compared:
        raise DataError(
            f"{before} and {after} have no problem in common, so there is nothing to compare: a problem is the same "
            "when its id and its gold are."
        )
    console.table(
        "Right, %, and the difference in points [95 %]",
        ("task", "n", "before", "after", "difference", "p"),
        [_format_figures(each) for each in compared],
    )
    for each in compared:
        _show_changes(console, each)
    return {_name_pair(each): {**asdict(each.found), "difference": each.found.difference} for each in compared}


def load_answers(place: Path, scoring: stored.Scoring) -> Answers:
    """The answers of a run's last evaluation, of one evaluation's folder, or of a file."""
    if place.is_file():
        return _load_file(place, scoring)
    if not place.is_dir():
        raise DataError(f"There is no run, evaluation or file {place} to compare.")
    steps = [step for step, _ in read_evaluations(place)]
    home = place / name_step_folder(steps[-1]) if steps else place
    files = sorted(home.glob("*.jsonl"))
    if not files:
        raise DataError(f"{place} holds no evaluation: there is no eval/step_N/TASK.jsonl in it.")
    return {file.stem: by_decoding for file in files for by_decoding in [_group_by_decoding(file)] if by_decoding}


def _load_file(file: Path, scoring: stored.Scoring) -> Answers:
    """Answers that an evaluation has written, or any others, which are scored first."""
    if file.name.endswith(".jsonl") and (found := _group_by_decoding(file)):
        return {file.stem: found}
    return {name: {stored.DECODING: rows} for name, rows in stored.score_responses(file, scoring).items()}


def _group_by_decoding(file: Path) -> dict[str, list[Row]]:
    """The rows of an evaluation by their decoding; nothing where these are no rows of an evaluation."""
    try:
        rows = read_lines(file)
    except ValueError as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    found: dict[str, list[Row]] = {}
    for row in rows:
        if not all(name in row for name in ("decoding", "group_id", "correct")):
            return {}
        found.setdefault(str(row["decoding"]), []).append(row)
    return found


def _pair_tasks(before: Answers, after: Answers) -> Iterator[TaskPair]:
    """The tasks that both have. A file alone may have another name on the other side."""
    alone = len(before) == len(after) == 1
    for task, one in before.items():
        other = next(iter(after.values())) if alone else after.get(task, {})
        shared = [(name, name) for name in one if name in other]
        if not shared and len(one) == len(other) == 1:
            shared = [(next(iter(one)), next(iter(other)))]
        for names in shared:
            rows = one[names[0]], other[names[1]]
            if found := compare_paired(*rows):
                yield TaskPair(task, names, *rows, found)


def _name_pair(each: TaskPair) -> str:
    one, other = each.decodings
    if one == other:
        return each.task if one == stored.DECODING else f"{each.task}, {one}"
    return f"{each.task}, {one} against {other}"


def _format_figures(each: TaskPair) -> Sequence[str]:
    found = each.found
    bounds = f"[{100 * found.ci_lo:+.1f}, {100 * found.ci_hi:+.1f}]"
    shares = (f"{100 * share:.1f}" for share in (found.before, found.after))
    chance = f"{found.p_value:.1e}" if found.p_value < 1e-3 else f"{found.p_value:.3f}"
    return _name_pair(each), f"{found.n:,}", *shares, f"{100 * found.difference:+.1f} {bounds}", chance


def _show_changes(console: Console, each: TaskPair) -> None:
    found = each.found
    console.say(
        f"{_name_pair(each)}: of {found.n:,} problems {len(found.gained):,} are answered better and "
        f"{len(found.lost):,} "
        f"worse ({found.test})."
    )
    if found.unpaired:
        console.say(f"  {found.unpaired:,} problems stand on one side only and are left out.")
    before, after = group_by_problem(each.before), group_by_problem(each.after)
    for word, changes in (("gained", found.gained), ("lost", found.lost)):
        for change in changes[:SHOWN]:
            _show_change(console, word, change, before[change.problem], after[change.problem])


def _show_change(
    console: Console, word: str, change: Change, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> None:
    """A problem that changed, with the first answer of either side that shows it."""
    console.say(f"  {word}: {_shorten(before[0].get('question'))}  (gold {_shorten(before[0].get('gold'))})")
    better = change.after > change.before
    for name, rows, share, right in (
        ("before", before, change.before, not better),
        ("after", after, change.after, better),
    ):
        shown = next((row for row in rows if bool(row["correct"]) == right), rows[0])
        console.say(f"    {name} {100 * share:.0f} %: {_shorten(shown.get('extracted') or shown.get('text'))}")


def _shorten(text: Any) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
