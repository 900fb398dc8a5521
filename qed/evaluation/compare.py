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

MAX_SHOWN = 3  # problems of each kind of change
MAX_LENGTH = 200  # characters of a question or an answer
Answers = dict[str, dict[str, list[Row]]]  # by task and decoding


@dataclass(frozen=True)
class TaskPair:
    """A task in both evaluations, with the decoding of each and the paired test."""

    task: str
    decodings: tuple[str, str]
    before: list[Row]
    after: list[Row]
    test: PairedTest


def compare(before: Path, after: Path, scoring: stored.Scoring, console: Console) -> dict[str, Any]:
    """Print the paired tests of two evaluations.

    Returns:
        the figures of each task's test, with the ids of the problems that changed.

    Raises:
        DataError: one of them contains no evaluation, or they have no problem in common.
    """
    pairs = list(_pair_tasks(load_answers(before, scoring), load_answers(after, scoring)))
    if not pairs:
        raise DataError(
            f"{before} and {after} have no problem in common, so there is nothing to compare: problems are the same "
            "if their ids and golds are equal."
        )
    console.table(
        "Right, %, and the difference in points [95 %]",
        ("task", "n", "before", "after", "difference", "p"),
        [_format_figures(pair) for pair in pairs],
    )
    for pair in pairs:
        _show_changes(console, pair)
    return {_name_pair(pair): {**asdict(pair.test), "difference": pair.test.difference} for pair in pairs}


def load_answers(place: Path, scoring: stored.Scoring) -> Answers:
    """Load the answers of a run's last evaluation, of an evaluation's folder, or of a file."""
    if place.is_file():
        return _load_file(place, scoring)
    if not place.is_dir():
        raise DataError(f"There is no run, evaluation or file {place} to compare.")
    steps = [step for step, _ in read_evaluations(place)]
    home = place / name_step_folder(steps[-1]) if steps else place
    files = sorted(home.glob("*.jsonl"))
    if not files:
        raise DataError(f"{place} contains no evaluation: there is no eval/step_N/TASK.jsonl in it.")
    return {file.stem: by_decoding for file in files for by_decoding in [_group_by_decoding(file)] if by_decoding}


def _load_file(file: Path, scoring: stored.Scoring) -> Answers:
    """Load answers of an evaluation, or score other answers."""
    if file.name.endswith(".jsonl") and (groups := _group_by_decoding(file)):
        return {file.stem: groups}
    return {name: {stored.DECODING: rows} for name, rows in stored.score_responses(file, scoring).items()}


def _group_by_decoding(file: Path) -> dict[str, list[Row]]:
    """Group the rows of an evaluation by decoding; empty if the file is not from an evaluation."""
    try:
        rows = read_lines(file)
    except ValueError as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if not all(name in row for name in ("decoding", "group_id", "correct")):
            return {}
        groups.setdefault(str(row["decoding"]), []).append(row)
    return groups


def _pair_tasks(before: Answers, after: Answers) -> Iterator[TaskPair]:
    """Pair the tasks that both have. Two single files are paired even with different names."""
    single = len(before) == len(after) == 1
    for task, old in before.items():
        new = next(iter(after.values())) if single else after.get(task, {})
        shared = [(name, name) for name in old if name in new]
        if not shared and len(old) == len(new) == 1:
            shared = [(next(iter(old)), next(iter(new)))]
        for names in shared:
            rows = old[names[0]], new[names[1]]
            if test := compare_paired(*rows):
                yield TaskPair(task, names, *rows, test)


def _name_pair(pair: TaskPair) -> str:
    before, after = pair.decodings
    if before == after:
        return pair.task if before == stored.DECODING else f"{pair.task}, {before}"
    return f"{pair.task}, {before} against {after}"


def _format_figures(pair: TaskPair) -> Sequence[str]:
    test = pair.test
    bounds = f"[{100 * test.ci_lo:+.1f}, {100 * test.ci_hi:+.1f}]"
    shares = (f"{100 * share:.1f}" for share in (test.before, test.after))
    chance = "–" if test.p_value is None else f"{test.p_value:.1e}" if test.p_value < 1e-3 else f"{test.p_value:.3f}"
    return _name_pair(pair), f"{test.n:,}", *shares, f"{100 * test.difference:+.1f} {bounds}", chance


def _show_changes(console: Console, pair: TaskPair) -> None:
    test = pair.test
    console.say(
        f"{_name_pair(pair)}: of {test.n:,} problems {len(test.gained):,} are answered better and "
        f"{len(test.lost):,} "
        f"worse ({test.test})."
    )
    if test.unpaired:
        console.say(f"  {test.unpaired:,} problems are in only one evaluation and are left out.")
    before, after = group_by_problem(pair.before), group_by_problem(pair.after)
    for word, changes in (("gained", test.gained), ("lost", test.lost)):
        for change in changes[:MAX_SHOWN]:
            _show_change(console, word, change, before[change.problem], after[change.problem])


def _show_change(
    console: Console, word: str, change: Change, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> None:
    """Print a problem that changed, with the first answer of each side that shows the change."""
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
    return words if len(words) <= MAX_LENGTH else f"{words[:MAX_LENGTH]}…"
