"""Data as the commands read it: a task or a file, its problems, and the rows that they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qed.config import plugins
from qed.config.task_names import TaskName, parse_task
from qed.data import tasks
from qed.data.sources.rows import Row
from qed.data.tasks.base import Originals
from qed.types import Problem

# Splits that are trained on, by how their names begin; the others are benchmarks, which filters leave whole.
TRAINING = ("train", "mini", "cot", "luffy", "en")


@dataclass(frozen=True)
class Data:
    """The problems of one task and split.

    Attributes:
        name: as it was given.
        task: what the name says.
        split: the one that was read.
        problems: of its rows, in their order.
        originals: the rows by their problem's id; empty for a task that makes its own.
        left_out: rows that are no problem, by their reason.
    """

    name: str
    task: TaskName
    split: str
    problems: list[Problem]
    originals: Originals
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def folder(self) -> str:
        """The name of its folder in a snapshot."""
        if self.task.leaf == "files":
            return TaskName("files", "", self.task.path).label
        return Path(self.task.leaf).stem if self.task.leaf.endswith(".py") else self.task.leaf.rpartition(".")[2]

    @property
    def trains(self) -> bool:
        """Whether it is data to train on, rather than a benchmark.

        Files, and tasks that name no splits, are, unless the split is called a test.
        """
        if not getattr(plugins.load_leaf("tasks", self.task.leaf), "SPLITS", ()):
            return "test" not in self.split
        return self.split.startswith(TRAINING)

    def rows(self) -> list[Row]:
        """Its rows, in the order of their problems."""
        return [row for _, row in pair_with_rows(self.problems, self.originals)]


def load_data(
    name: str, mapping: Mapping[str, str], revisions: Mapping[str, str] | None = None, usual: str = "train"
) -> Data:
    """The problems of a task or file; without a split the usual one, or the first that the task has.

    Raises:
        UsageError: no such task or split.
        DataError: the data is missing, broken or empty.
    """
    task = parse_task(name)
    known = getattr(plugins.load_leaf("tasks", task.leaf), "SPLITS", ())
    split = task.split or (usual if usual in known or not known else known[0])
    left_out: Counter[str] = Counter()
    originals: Originals = {}
    problems = tasks.load_task(name, split, mapping, left_out, revisions, originals)
    return Data(name, task, split, problems, originals, left_out)


def pair_with_rows(problems: list[Problem], originals: Originals) -> Iterator[tuple[Problem, Row]]:
    """Every problem with its row; of a problem that asks for k answers all k rows, so that it is read as k again."""
    rest = {identity: iter(rows) for identity, rows in originals.items()}
    for problem in problems:
        rows = rest.get(problem.id, iter(()))
        if "k" in problem.meta:
            yield from ((problem, row) for row in rows)
        elif (row := next(rows, None)) is not None:
            yield problem, row
