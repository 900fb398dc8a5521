"""Second verdicts: those of additional graders on the same answers (`--also-grade NAME`).

LUFFY's evaluation reports two columns, its boxed grader and math-verify (arXiv 2504.14945); answers on which two
graders disagree are the ones to inspect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qed.config.callables import is_callable_name
from qed.console.live import Console
from qed.errors import UsageError
from qed.evaluation.table import format_interval
from qed.grading.policy import NAMES
from qed.rewards import grader
from qed.rewards.base import FINAL_ANSWER
from qed.rewards.grader import Grader
from qed.types import Groups, Rollout

if TYPE_CHECKING:
    from qed.runs.run import Row

FIRST = "correct"  # the column of the first verdict
ALSO = "also"  # the entry of the second verdicts in a summary


@dataclass(frozen=True)
class SecondGrader:
    """An additional grader of the same answers, with its name as given."""

    name: str
    grader: Grader

    @property
    def column(self) -> str:
        """The column of this grader's verdicts in the rows."""
        return f"{FIRST}/{self.name}"


def split_names(text: str) -> tuple[str, ...]:
    """Return the names of `--also-grade NAME,…`, each once.

    Raises:
        UsageError: one is empty.
    """
    names = [name.strip() for name in text.split(",")] if text else []
    if not all(names):
        raise UsageError(f"--also-grade {text} has an empty name.")
    return tuple(dict.fromkeys(names))


def load_second_graders(
    names: Sequence[str], max_tokens: int = 0, conversational: bool = False
) -> tuple[SecondGrader, ...]:
    """Load additional graders by name.

    Args:
        names: a grading policy (math, qwen, strict); a reward that decides correctness; or a reward with an option,
            `question_only.grader=slow`.
        max_tokens, conversational: as for `make_grader`.

    Raises:
        UsageError: there is no such grader, or it does not decide correctness.
    """
    return tuple(SecondGrader(name, _load(name, max_tokens, conversational)) for name in names)


def _load(name: str, max_tokens: int, conversational: bool) -> Grader:
    option = f"{FINAL_ANSWER}.policy={name}" if name in NAMES else name
    target, equals, _ = option.partition("=")
    own = bool(equals) and not is_callable_name(name)
    reward = target.rpartition(".")[0] if own else name
    loaded = grader.make_grader((reward,), (option,) if own else (), max_tokens, conversational)
    if loaded.judge is None:
        raise UsageError(
            f"--also-grade {name}: {reward} does not decide whether an answer is correct. Name a reward that does, "
            f"such as math_verify or boxed, or a policy: {', '.join(NAMES)}."
        )
    return loaded


def add_verdicts(rows: Sequence[Row], groups: Groups, graders: Sequence[SecondGrader]) -> None:
    """Add a column for each grader to the rows of graded answers, which follow the order of the groups."""
    for each in graders:
        grades = [grade for own in each.grader(groups) for grade in own]
        for row, grade in zip(rows, grades, strict=True):
            row[each.column] = grade.correct


def judge_again(rollout: Rollout, graders: Sequence[SecondGrader]) -> dict[str, bool]:
    """Return the verdicts of additional graders on one answer, by column."""
    return {each.column: each.grader([[rollout]])[0][0].correct for each in graders}


def summarize_verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute the figures of the second verdicts: an entry `also`, or nothing if the rows have none.

    For each name: `accuracy, ci_lo, ci_hi` as for the first verdict, and the number of `answers`, of answers on which
    both `agree`, and of answers that are right in `only_first` or `only_here`.
    """
    columns = [name for name in rows[0] if name.startswith(f"{FIRST}/")] if rows else []
    also = {column.partition("/")[2]: _summarize_column(rows, column) for column in columns}
    return {ALSO: also} if also else {}


def _summarize_column(rows: Sequence[Mapping[str, Any]], column: str) -> dict[str, Any]:
    # Imported here, because `qed grade` uses this file and otherwise needs no NumPy.
    from qed.evaluation.summary import compute_accuracy, group_by_problem  # noqa: PLC0415

    groups = group_by_problem([{**row, FIRST: row[column]} for row in rows])
    return {
        **{key: value for key, value in compute_accuracy(list(groups.values())).items() if key != "n"},
        "answers": len(rows),
        "agree": sum(row[FIRST] == row[column] for row in rows),
        "only_first": sum(row[FIRST] and not row[column] for row in rows),
        "only_here": sum(row[column] and not row[FIRST] for row in rows),
    }


def show_verdicts(console: Console, summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the second verdicts of each task next to the first."""
    rows = []
    for task, figures in summaries.items():
        for name, each in figures.get(ALSO, {}).items():
            counts = (f"{each[key]:,}" for key in ("agree", "only_first", "only_here"))
            rows.append((task, name, format_interval(figures), format_interval(each), *counts))
    if rows:
        columns = ("task", "also by", "first [95 %]", "also [95 %]", "agree", "only first", "only also")
        console.table("Right by other graders, %; answers on which they agree", columns, rows)
