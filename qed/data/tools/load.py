"""Load data for the commands: a task or a file, with its problems and the original rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qed.config import plugins
from qed.config.task_names import TaskName, parse_task
from qed.data import tasks
from qed.data.sources.rows import Row
from qed.data.tasks.base import Originals
from qed.types import Problem

# Prefixes of the names of training splits; other splits are benchmarks, which are not filtered.
TRAINING = ("train", "mini", "cot", "luffy", "complement", "en")


@dataclass(frozen=True)
class Data:
    """The problems of one task and split.

    Attributes:
        name: the name as given.
        task: the parsed name.
        split: the split that was read.
        problems: problems in the order of their rows.
        originals: the rows by problem id; empty for a task that generates its problems.
        left_out: counts of skipped rows, by reason.
    """

    name: str
    task: TaskName
    split: str
    problems: list[Problem]
    originals: Originals
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def folder(self) -> str:
        """Return the name of its folder in a snapshot."""
        if self.task.leaf == "files" or self.task.source:
            return replace(self.task, split="").label
        return Path(self.task.leaf).stem if self.task.leaf.endswith(".py") else self.task.leaf.rpartition(".")[2]

    @property
    def trains(self) -> bool:
        """Return whether this is training data rather than a benchmark.

        Files and tasks without named splits are training data, unless the split's name contains `test`.
        """
        if not getattr(plugins.load_leaf("tasks", self.task.leaf), "SPLITS", ()):
            return "test" not in self.split
        return self.split.startswith(TRAINING)

    def rows(self) -> list[Row]:
        """Return the rows in the order of their problems."""
        return [row for _, row in pair_with_rows(self.problems, self.originals)]


def load_data(
    name: str, mapping: Mapping[str, str], revisions: Mapping[str, str] | None = None, default_split: str = "train"
) -> Data:
    """Load a task or file; a name without a split loads the default split, or the task's first.

    Raises:
        UsageError: the task or split does not exist.
        DataError: the data is missing, broken or empty.
    """
    task = parse_task(name)
    splits = getattr(plugins.load_leaf("tasks", task.leaf), "SPLITS", ())
    split = task.split or (default_split if default_split in splits or not splits else splits[0])
    left_out: Counter[str] = Counter()
    originals: Originals = {}
    problems = tasks.load_task(name, split, mapping, left_out, revisions, originals)
    return Data(name, task, split, problems, originals, left_out)


def pair_with_rows(problems: list[Problem], originals: Originals) -> Iterator[tuple[Problem, Row]]:
    """Yield every problem with its row; a problem with k answers is yielded with all k rows, to preserve k."""
    rest = {identity: iter(rows) for identity, rows in originals.items()}
    for problem in problems:
        rows = rest.get(problem.id, iter(()))
        if "k" in problem.meta:
            yield from ((problem, row) for row in rows)
        elif (row := next(rows, None)) is not None:
            yield problem, row
