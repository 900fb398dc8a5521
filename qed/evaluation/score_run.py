"""Run `qed evaluate --responses`: in one process, as one of several shards, and merged from shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from qed.console.live import Console
from qed.evaluation.row_shards import Items
from qed.evaluation.shards import Joined
from qed.evaluation.stored import (
    AnswerTable,
    Scoring,
    finish_scores,
    name_columns,
    read_answers,
    score_answers,
    score_table,
    summarize_columns,
)
from qed.evaluation.verdicts import load_second_graders
from qed.rewards import grader
from qed.rewards.policies import add_policy
from qed.runs.manifest import hash_file
from qed.runs.run import Row

COLUMN, PLACE = "column", "place"  # in a shard's row, the index of its column of answers, and its place there


@dataclass(frozen=True)
class ScoreJob:
    """What `qed evaluate --responses` scores: a file, how to read it (without a loaded grader), and a reward if any."""

    file: str
    scoring: Scoring
    reward: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    unit = "problems"

    @cached_property
    def graded(self) -> Scoring:
        """The scoring with the loaded grader of the reward."""
        options = add_policy(self.reward, self.options, self.scoring.policy) if self.reward else ()
        reward = grader.make_grader(self.reward, options) if self.reward else None
        return replace(self.scoring, grader=reward, second=load_second_graders(self.scoring.also))

    @property
    def judge(self) -> str | None:
        """The part of the reward that decides correctness; None if the final answer does."""
        return self.graded.grader.judge if self.graded.grader else None

    def describe(self, block: int) -> Row:
        """Describe what all shards must have in common, with units of `block` items."""
        about = {**asdict(self.scoring), "reward": self.reward, "options": self.options, "judge": self.judge}
        about |= {"columns": name_columns(Path(self.file), self.scoring), "notes": self.table.notes}
        return {"kind": "responses", "unit": self.unit, "block": block, "data": hash_file(Path(self.file)), **about}

    @cached_property
    def table(self) -> AnswerTable:
        """The answers of the file; see `score_responses` for the errors."""
        return read_answers(Path(self.file), self.scoring)

    def for_task(self) -> ScoreJob:
        """Return the same job for one of many processes, without a loaded grader."""
        return replace(self)

    def list_files(self) -> list[str]:
        """List the file with the answers."""
        return [self.file]

    def read_items(self) -> list[Any]:
        """Read the answers to all problems; see `score_responses` for the errors."""
        return list(self.table.list_problems())

    def grade_items(self, items: Items) -> Iterator[list[Row]]:
        """Yield for each problem its rows of an evaluation, each with its column of answers and its place there."""
        for columns in items:
            yield [
                {COLUMN: number, PLACE: place, **row}
                for number, answers in enumerate(columns)
                for place, row in score_answers(answers, self.graded)
            ]

    def score(self, out: Path | None, console: Console) -> dict[str, Any]:
        """Score the whole file in this process; see `finish_scores`."""
        table, names = self.table, name_columns(Path(self.file), self.scoring)
        scored = score_table(table, names, self.graded, console.say)
        return _finish(scored, self.judge, self.reward, table.notes, self.scoring.ties, out, console)


def merge_scores(out: Path, joined: Joined, overwrite: bool, console: Console) -> dict[str, Any]:
    """Write the verdicts of shards, and return the figures."""
    whole = joined.whole
    scored: dict[str, list[Row]] = {name: [] for name in whole["columns"]}
    for row in sorted(chain.from_iterable(joined.units), key=itemgetter(PLACE)):
        del row[PLACE]
        scored[whole["columns"][row.pop(COLUMN)]].append(row)
    return _finish(scored, whole["judge"], whole["reward"], whole["notes"], whole["ties"], out, console)


def _finish(
    scored: dict[str, list[Row]],
    judge: str | None,
    reward: Sequence[str],
    notes: Sequence[str],
    ties: str,
    out: Path | None,
    console: Console,
) -> dict[str, Any]:
    """Summarize and write scored answers; see `summarize_columns` and `finish_scores` for the arguments."""
    if reward and judge is None:
        console.say(f"{','.join(reward)} does not decide correctness: the final answer does.")
    return finish_scores(scored, summarize_columns(scored, judge, notes, ties), out, console)
