"""Run `qed evaluate --responses`: in one process, as a shard of several, and joined from shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from qed.console.live import Console
from qed.evaluation.row_shards import Items, hash_file
from qed.evaluation.shards import Joined
from qed.evaluation.stored import (
    Scoring,
    finish_scores,
    name_columns,
    read_answers,
    score_answer,
    score_responses,
)
from qed.grading import symbolic
from qed.rewards import grader
from qed.runs.run import Row


@dataclass(frozen=True)
class ScoreJob:
    """What `qed evaluate --responses` scores: a file, how it is read (without a grader), and a reward if any."""

    file: str
    scoring: Scoring
    reward: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @cached_property
    def graded(self) -> Scoring:
        """The scoring with the grader of the reward."""
        return replace(self.scoring, grader=grader.make_grader(self.reward, self.options) if self.reward else None)

    @property
    def judge(self) -> str | None:
        """The part of the reward that decides correctness; None for the final answer."""
        return self.graded.grader.judge if self.graded.grader else None

    def describe(self, block: int) -> Row:
        """Describe the whole for its shards, with units of `block` rows."""
        about = {**asdict(self.scoring), "reward": self.reward, "options": self.options, "judge": self.judge}
        names = name_columns(Path(self.file), self.scoring)
        return {"kind": "responses", "block": block, "data": hash_file(Path(self.file)), "columns": names, **about}

    def for_task(self) -> ScoreJob:
        """Return the same job for one of many processes, without a loaded grader."""
        return replace(self)

    def list_files(self) -> list[str]:
        """List the file with the answers."""
        return [self.file]

    def read_items(self) -> list[Any]:
        """Read the answers of all rows; see `score_responses` for the errors."""
        return list(read_answers(Path(self.file), self.scoring))

    def grade_items(self, items: Items) -> Iterator[list[Row]]:
        """Yield for each row those of an evaluation, one for each column of answers."""
        symbolic.CHILD.start()
        for answers in items:
            yield [score_answer(answer, self.graded) for answer in answers]

    def score(self, out: Path | None, console: Console) -> dict[str, Any]:
        """Score the whole file in this process; see `finish_scores`."""
        scored = score_responses(Path(self.file), self.graded)
        return finish_scores(scored, self.judge, ",".join(self.reward), out, console)


def merge_scores(out: Path, joined: Joined, overwrite: bool, console: Console) -> dict[str, Any]:
    """Write the verdicts of shards, and return the figures."""
    whole, rows = joined.whole, list(chain.from_iterable(joined.units))
    columns = whole["columns"]
    scored = {name: rows[number :: len(columns)] for number, name in enumerate(columns)}
    return finish_scores(scored, whole["judge"], ",".join(whole["reward"]), out, console)
