"""Run `qed grade`: in one process, as one of several shards, and merged from shards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from qed.config import plugins
from qed.config.reward_names import parse_reward
from qed.console.live import Console
from qed.console.progress import report_progress
from qed.data.sources import local
from qed.data.sources.rows import Place, Rows
from qed.data.sources.writing import Writer
from qed.errors import DataError
from qed.evaluation.answer_rows import Group, expand_lists, group_rows
from qed.evaluation.grade_files import Graded, Summary, grade_groups
from qed.evaluation.grade_workers import Comparison, GradedChunk, count_workers, grade_in_workers
from qed.evaluation.row_shards import Items, require_unchanged
from qed.evaluation.shards import Joined
from qed.evaluation.table import show_grades
from qed.evaluation.verdicts import load_second_graders, show_verdicts
from qed.grading.policy import PolicyName, find_policy
from qed.grading.session import Limits
from qed.rewards import grader
from qed.rewards.grader import Grader
from qed.rewards.policies import add_policy
from qed.runs.manifest import hash_file
from qed.runs.run import Row
from qed.types import Grade

MAX_WORKERS = 8
VERDICT = ("seconds", "kind", "also", "has_gold")  # what a shard keeps of a graded row besides its grade


@dataclass(frozen=True)
class GradeJob:
    """What `qed grade` grades: files, the columns of gold and answer, the extraction mode, and a reward if any.

    `lists` says what a list of answers is, see `split_answers`. `seconds` is the CPU time limit per answer of a
    user-defined reward; `workers` is its number of processes, 0 for one per core, up to 8. `policy` names the grading
    policy, and `also` additional graders of the same answers.
    """

    files: tuple[str, ...]
    keys: tuple[str, str] = ("", "")
    mode: str = "flexible"
    reward: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    seconds: float = 10.0
    workers: int = 0
    lists: str = ""
    policy: PolicyName = "math"
    also: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What is graded at a time: with a reward, the answers to a problem."""
        return "problems" if self.reward else "rows"

    def describe(self, block: int) -> Row:
        """Describe what all shards must have in common, with units of `block` items."""
        data = [hash_file(Path(name)) for name in self.files]
        about = {name: value for name, value in asdict(self).items() if name not in ("files", "workers")}
        return {"kind": "grades", "unit": self.unit, "block": block, "data": data, **about}

    def for_task(self) -> GradeJob:
        """Return the same job for one of many processes: with one worker, and without a loaded grader."""
        return replace(self, workers=1)

    def list_files(self) -> list[str]:
        """List the files with the rows."""
        return list(self.files)

    def read_rows(self) -> Rows:
        """Yield a row for each answer, with its place; see `expand_lists` for the errors."""
        return expand_lists(read_files(self.files), self.keys, self.lists)

    def read_groups(self) -> Iterator[Group]:
        """Yield the rows as they are graded: for a reward, the answers to a problem together."""
        return group_rows(self.read_rows()) if self.reward else ([each] for each in self.read_rows())

    def read_items(self) -> list[Any]:
        """Read all rows with their places, grouped as they are graded.

        Raises:
            DataError: there are none, or a file is broken.
        """
        groups = list(self.read_groups())
        if not groups:
            raise DataError(f"{self.files[0]} has no row to grade.")
        return groups

    def grade_items(self, items: Items) -> Iterator[list[Row]]:
        """Yield the verdicts of each group of rows, in order, in a form for JSON."""
        graded = self.grade(items)
        for group in items:
            yield [
                {"grade": asdict(each.grade), **{name: getattr(each, name) for name in VERDICT}}
                for each in islice(graded, len(group))
            ]

    def grade_files(self, written: bool = True) -> Iterator[Graded] | Iterator[GradedChunk]:
        """Yield the rows of the files with their verdicts, in order; large files are graded in several processes.

        For these, rows are returned only if they are to be `written`; otherwise only their counts.
        """
        workers = 1 if self.reward or self.also or self.workers == 1 else count_workers(self.files)
        if workers == 1:
            return self.grade(self.read_groups())
        return grade_in_workers(self.files, Comparison(self.keys, self.mode, self.lists, self.policy, written), workers)

    def grade(self, groups: Iterable[Group]) -> Iterator[Graded]:
        """Yield the rows with their verdicts, in order."""
        judge, workers = self.grader
        graders = (judge, load_second_graders(self.also))
        return grade_groups(groups, self.keys, self.mode, graders, workers, find_policy(self.policy))

    def write(
        self,
        graded: Iterable[Graded | GradedChunk],
        out: Path | None,
        console: Console,
        together: bool = False,
    ) -> dict[str, Any]:
        """Write rows with their verdicts as soon as they are graded, print the counts and return them.

        Args:
            graded: rows with verdicts, in order.
            out: the file; None to write none.
            console: for the output.
            together: whether other processes graded the rows, so that rates use the summed time of the rows.

        Raises:
            DataError: there is no row.
        """
        summary, rewarded = Summary(), bool(self.reward)
        with Writer(out) if out else nullcontext() as writer:
            try:
                for _, each in report_progress(graded, console.say, "Grading", "answers", count=lambda: summary.n):
                    each.add_to(summary, writer, rewarded)
            except KeyboardInterrupt:
                saved = f"; {writer.part} has them" if summary.n and writer is not None and writer.part.exists() else ""
                console.say(f"Interrupted after {summary.n} rows{saved}.")
                raise
        figures = summary.figures(together)
        if not summary.n:
            raise DataError(f"{self.files[0]} has no row to grade.")
        show_grades(console, figures, rewarded)
        show_verdicts(console, {"all": figures})
        if out and summary.replaced:
            console.say(f"Columns of the input replaced by new ones: {', '.join(summary.replaced)}.")
        if out:
            console.say(f"Every verdict is in {out}.")
        return figures

    @cached_property
    def grader(self) -> tuple[Grader | None, int]:
        """The grader of the reward, or None to grade by the final answer, and its number of workers."""
        if not self.reward:
            return None, 1
        user_code = any(plugins.is_users_own(parse_reward(name).source) for name in self.reward)
        workers = (self.workers or min(MAX_WORKERS, os.cpu_count() or 1)) if user_code else 1
        pool = grader.Pool(workers, Limits(self.seconds, 6 * self.seconds))
        return grader.make_grader(self.reward, add_policy(self.reward, self.options, self.policy), pool=pool), workers


def read_files(files: Iterable[str]) -> Iterator[tuple[Place, Row]]:
    """Yield the rows of files with their places, one file after the other."""
    for file in files:
        yield from local.read_rows(file, "")


def merge_grades(out: Path, joined: Joined, overwrite: bool, console: Console) -> dict[str, Any]:
    """Write the rows of the graded files with the verdicts of the shards, and return the figures.

    Raises:
        DataError: a file is not here or has changed.
    """
    whole, named = joined.whole, [info["files"] for info in joined.infos]
    files = next((names for names in named if all(Path(name).is_file() for name in names)), named[0])
    require_unchanged(files, whole["data"])
    gold_key, response_key = whole["keys"]
    job = GradeJob(tuple(files), (gold_key, response_key), reward=tuple(whole["reward"]), lists=whole["lists"])
    verdicts = chain.from_iterable(joined.units)
    graded = (
        Graded(row, Grade(**verdict.pop("grade")), **verdict)
        for (_, row), verdict in zip(job.read_rows(), verdicts, strict=True)
    )
    return job.write(graded, out, console, together=True)
