"""Print a comparison: a table of the tests, then the notes and warnings of each, and the problems that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qed.console.live import Console
from qed.evaluation.arms import ArmsTest
from qed.evaluation.compared_tasks import TaskPair
from qed.evaluation.paired import Change, PairedTest
from qed.evaluation.stored_problems import write_count
from qed.evaluation.summary import group_by_problem
from qed.evaluation.table import NO_VALUE

MAX_SHOWN = 3  # problems shown for each kind of change
MAX_LENGTH = 200  # characters shown of a question or an answer
Result = tuple[TaskPair, PairedTest | ArmsTest]


def show_results(
    console: Console, results: Sequence[Result], figures: Mapping[str, Mapping[str, Any]], measure: str
) -> None:
    """Print the tests of all tasks; `figures` are those that `qed.evaluation.compare.compare` returns."""
    several = len(results) > 1
    columns = ["task", "n", "before", "after", "difference", "p", *(["p (Holm)"] if several else [])]
    rows = [[*_format_test(pair, test), *_format_holm(figures[pair.name], several)] for pair, test in results]
    what = "Right" if measure == "accuracy" else measure
    console.table(f"{what}, %, and the difference in points [95 %]", columns, rows)
    if several:
        console.say(
            f"p (Holm) is adjusted for the {len(results)} tests of this table: it decides, unless one task was chosen "
            "before."
        )
    common = [line for line in results[0][0].warnings if all(line in pair.warnings for pair, _ in results)]
    for line in common:
        console.say(f"warning: {line}")
    for pair, test in results:
        if isinstance(test, PairedTest):
            _show_changes(console, pair, test)
        else:
            _show_arms(console, pair, test)
        _show_cautions(console, figures[pair.name], common)


def format_p_value(value: float | None) -> str:
    """Format a p-value; a dash for none."""
    return NO_VALUE if value is None else f"{value:.1e}" if value < 1e-3 else f"{value:.3f}"


def _format_test(pair: TaskPair, test: PairedTest | ArmsTest) -> Sequence[str]:
    bounds = f"[{100 * test.ci_lo:+.1f}, {100 * test.ci_hi:+.1f}]"
    shares = (f"{100 * share:.1f}" for share in (test.before, test.after))
    difference = f"{100 * test.difference:+.1f} {bounds}"
    return pair.name, f"{test.n:,}", *shares, difference, format_p_value(test.p_value)


def _format_holm(figures: Mapping[str, Any], several: bool) -> Sequence[str]:
    return [format_p_value(figures["p_holm"])] if several else []


def _show_cautions(console: Console, figures: Mapping[str, Any], common: Sequence[str]) -> None:
    """Print the test's note and own warnings, the number of truncated answers, and the detectable difference."""
    if figures["note"]:
        console.say(f"  {figures['note']}")
    for line in figures["warnings"]:
        if line not in common:
            console.say(f"  warning: {line}")
    cut = figures["truncated"]
    if any(side["truncated"] for side in cut.values()):
        sides = "; ".join(
            f"{name} {side['truncated']:,} of {side['answers']:,} ({side['truncated_right']:,} right, "
            f"{side['truncated_wrong']:,} wrong)"
            for name, side in cut.items()
        )
        console.say(f"  answers cut off at the limit of tokens: {sides}")
    if "power" in figures:
        console.say(f"  {figures['power']['text']}")


def _show_changes(console: Console, pair: TaskPair, test: PairedTest) -> None:
    how = "" if test.p_value is None else f" ({test.test})"
    console.say(
        f"{pair.name}: of {test.n:,} problems {len(test.gained):,} are answered better and {len(test.lost):,} "
        f"worse{how}."
    )
    if test.unpaired:
        console.say(f"  {test.unpaired:,} problems are in only one evaluation and are left out.")
    before, after = group_by_problem(pair.before[0].rows), group_by_problem(pair.after[0].rows)
    for word, changes in (("gained", test.gained), ("lost", test.lost)):
        for change in changes[:MAX_SHOWN]:
            _show_change(console, word, change, before[change.problem], after[change.problem])


def _show_change(
    console: Console, word: str, change: Change, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> None:
    """Print a problem that changed, with the first answer of each side that illustrates the change."""
    problem = before[0].get("question") or change.problem
    console.say(f"  {word}: {_shorten(problem)}  (gold {_shorten(before[0].get('gold'))})")
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


def _show_arms(console: Console, pair: TaskPair, test: ArmsTest) -> None:
    """Print the measure of each run, and how much seeds and problems vary."""
    seeds = f"{write_count(test.seeds[0], 'run')} against {write_count(test.seeds[1], 'run')}"
    console.say(f"{pair.name}: {seeds}, on the {write_count(test.n, 'problem')} that all answered.")
    if test.unpaired:
        console.say(f"  {write_count(test.unpaired, 'problem')} not in all runs and left out.")
    for name, runs, between, within in zip(("before", "after"), test.runs, test.between, test.within, strict=True):
        values = ", ".join(f"{100 * value:.1f}" for value in runs)
        few = "run" if len(runs) == 1 else "problem in common"
        seeds = f"unknown, with one {few}" if between is None else f"{100 * between:.1f}"
        spread = f"standard deviation between seeds {seeds}, from problems and answers {100 * within:.1f}"
        console.say(f"  {name}: {values}; {spread}")
