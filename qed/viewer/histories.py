"""Every problem of a run through training: which groups of which steps and evaluations answered it, and how well."""

from __future__ import annotations

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qed.report.numbers import read_number
from qed.runs.run import Row
from qed.viewer.details import list_answer_steps
from qed.viewer.evaluations import list_evaluated_files, locate_rows
from qed.viewer.library import Library, RunPlace
from qed.viewer.line_files import Stamp, read_stamp
from qed.viewer.params import Refused

MAX_RUNS = 8  # histories in memory
SECONDS = 3.0  # of reading for one reply
TRAINING = ("", "")  # the task and the decoding of a training step
Source = tuple[int, str]  # a step, and the task of an evaluation or "" for training


@dataclass(frozen=True)
class Visit:
    """The answers to one problem in one group: of a training step, or of a decoding of an evaluation."""

    step: int
    task: str
    decoding: str
    group: int
    n: int
    n_right: int
    reward_mean: float | None

    @property
    def series(self) -> tuple[str, str]:
        """Return what this visit can be compared with: the same task and decoding."""
        return self.task, self.decoding

    @property
    def is_training(self) -> bool:
        """Return whether the answers are of a training step."""
        return self.series == TRAINING


@dataclass
class History:
    """The groups of a run, by column; a problem, a task and a decoding are numbers."""

    problems: dict[str, int] = field(default_factory=dict)
    about: list[Row] = field(default_factory=list)  # of each problem: question, gold
    series: dict[tuple[str, str], int] = field(default_factory=lambda: {TRAINING: 0})
    stamps: dict[Source, Stamp] = field(default_factory=dict)
    columns: dict[str, array[Any]] = field(
        default_factory=lambda: {
            **{name: array("q") for name in ("problem", "step", "series", "group", "n", "n_right")},
            "reward": array("d"),
        }
    )
    lock: threading.Lock = field(default_factory=threading.Lock)
    complete: bool = False

    def add(self, source: Source, stamp: Stamp, groups: Sequence[Row]) -> None:
        """Add the groups of a step or of an evaluation."""
        step, task = source
        self.stamps[source] = stamp
        for number, group in enumerate(groups):
            name = str(group.get("id"))
            if name not in self.problems:
                self.problems[name] = len(self.problems)
                self.about.append({"question": str(group.get("question") or ""), "gold": group.get("gold")})
            series = (task, str(group.get("decoding") or "")) if task else TRAINING
            reward = read_number(group.get("reward_mean"))
            values = {
                "problem": self.problems[name],
                "step": step,
                "series": self.series.setdefault(series, len(self.series)),
                "group": number,
                "n": int(group.get("n") or 0),
                "n_right": int(group.get("n_right") or 0),
                "reward": np.nan if reward is None else reward,
            }
            for column, value in values.items():
                self.columns[column].append(value)

    def read(self, name: str) -> Any:
        """Return a column as an array of its own."""
        return np.array(self.columns[name])

    def list_visits(self, problem: str) -> list[Visit]:
        """Return the visits of a problem: by step, evaluations of a step before its training."""
        number = self.problems.get(problem, -1)
        names = list(self.series)
        rows = np.flatnonzero(self.read("problem") == number)
        visits = [
            Visit(
                self.columns["step"][row],
                *names[self.columns["series"][row]],
                self.columns["group"][row],
                self.columns["n"][row],
                self.columns["n_right"][row],
                read_number(self.columns["reward"][row]),
            )
            for row in rows.tolist()
        ]
        return sorted(visits, key=lambda visit: (visit.step, visit.is_training, visit.series, visit.group))
