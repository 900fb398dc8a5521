"""Every problem of a run through training: which groups of which steps and evaluations answered it, and how well."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qed.report.numbers import read_number
from qed.runs.manifest import parse_step
from qed.runs.run import Row
from qed.runs.step_file import parse_step_file
from qed.viewer.library import MOST_ENTRIES, Library, RunPlace
from qed.viewer.outcomes import load_groups, read_count
from qed.viewer.run_files import find_file, list_folder

MAX_RUNS = 8  # histories in memory
SECONDS = 3.0  # the most reading time for one reply
TRAINING = ("", "")  # the task and the decoding of a training step
Source = tuple[int, str, tuple[str, ...]]  # a step, the task of an evaluation or "" for training, and the file
Stamp = tuple[int, int]  # the time and the size of a file, which change when it is written
ROWS = ".jsonl"


@dataclass(frozen=True)
class Visit:
    """The answers to one problem in one group: of a training step, or of a decoding of an evaluation.

    Those of a training step that no grader could judge are not counted.
    """

    step: int
    task: str
    decoding: str
    group: int
    n: int
    n_right: int
    reward_mean: float | None

    @property
    def series(self) -> tuple[str, str]:
        """Return the task and decoding; visits of the same series can be compared."""
        return self.task, self.decoding

    @property
    def is_training(self) -> bool:
        """Return whether the answers are of a training step."""
        return self.series == TRAINING


@dataclass
class History:
    """The groups of a run by column, with problems, tasks and decodings as numbers."""

    problems: dict[str, int] = field(default_factory=dict)
    about: list[Row] = field(default_factory=list)  # of each problem: question, gold
    series: dict[tuple[str, str], int] = field(default_factory=lambda: {TRAINING: 0})
    stamps: dict[Source, Stamp] = field(default_factory=dict)  # of the files that have been read
    columns: dict[str, array[Any]] = field(
        default_factory=lambda: {
            **{name: array("q") for name in ("problem", "step", "series", "group", "n", "n_right", "earned")},
            "reward": array("d"),
        }
    )
    complete: bool = False

    def add(self, step: int, task: str, groups: Sequence[Row]) -> None:
        """Add the groups of a step, or of the evaluation of a task.

        The answers of an evaluation may be scattered over its file, for example if it has one answer to each problem
        in turn: then they are one visit, at the first of their groups.
        """
        known: dict[tuple[float, float], int] = {}  # the rows of this evaluation by problem and series
        for number, group in enumerate(groups):
            name = str(group.get("id"))
            if name not in self.problems:
                self.problems[name] = len(self.problems)
                self.about.append({"question": str(group.get("question") or ""), "gold": group.get("gold")})
            series = (task, str(group.get("decoding") or "")) if task else TRAINING
            reward = read_number(group.get("reward_mean"))
            n, n_right = ("n", "n_right") if task or "n_graded" not in group else ("n_graded", "n_graded_right")
            values = {
                "problem": self.problems[name],
                "step": step,
                "series": self.series.setdefault(series, len(self.series)),
                "group": number,
                "n": read_count(group.get(n)),
                "n_right": read_count(group.get(n_right)),
                "reward": np.nan if reward is None else reward,
                "earned": 0 if reward is None else read_count(group.get("n")),  # answers of the mean
            }
            row = known.setdefault((values["problem"], values["series"]), len(self.columns["n"])) if task else None
            if row is None or row == len(self.columns["n"]):
                for column, value in values.items():
                    self.columns[column].append(value)
            else:
                self._merge(row, values)

    def _merge(self, row: int, values: Row) -> None:
        """Add further answers to a visit."""
        columns, earned, reward = self.columns, values["earned"], self.columns["reward"][row]
        total = columns["earned"][row] + earned
        if earned:
            columns["reward"][row] = (
                reward + (values["reward"] - reward) * earned / total if total > earned else values["reward"]
            )
        for name in ("n", "n_right", "earned"):
            columns[name][row] += values[name]

    def read(self, name: str) -> Any:
        """Return a copy of a column as an array."""
        return np.array(self.columns[name])

    def list_visits(self, problem: str) -> list[Visit]:
        """Return the visits of a problem by step, the evaluations of a step before its training."""
        number = self.problems.get(problem, -1)
        names = list(self.series)
        rows = np.flatnonzero(self.read("problem") == number)
        column = self.columns
        visits = []
        for row in rows.tolist():
            task, decoding = names[column["series"][row]]
            step, group, n, n_right = (column[name][row] for name in ("step", "group", "n", "n_right"))
            visits.append(Visit(step, task, decoding, group, n, n_right, read_number(column["reward"][row])))
        return sorted(visits, key=lambda visit: (visit.step, visit.is_training, visit.series, visit.group))


class _Histories:
    """The histories of the runs that were requested last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_folder: OrderedDict[Path, tuple[threading.Lock, History]] = OrderedDict()

    @contextmanager
    def open(self, library: Library, place: RunPlace) -> Iterator[History]:
        """Yield the history of a run after reading new files for at most SECONDS; to one thread at a time."""
        with self.lock:
            lock, _ = self.by_folder.setdefault(place.folder, (threading.Lock(), History()))
            self.by_folder.move_to_end(place.folder)
            while len(self.by_folder) > MAX_RUNS:
                self.by_folder.popitem(last=False)
        with lock:
            stamps = _list_sources(place)
            history = self.by_folder.get(place.folder, (lock, History()))[1]
            if any(stamps.get(source) != stamp for source, stamp in history.stamps.items()):
                history = History()  # a resumed run rewrote steps
            _read_sources(library, place, history, stamps)
            with self.lock:
                self.by_folder[place.folder] = (lock, history)
            yield history


_HISTORIES = _Histories()


def open_history(library: Library, place: RunPlace) -> AbstractContextManager[History]:
    """Open the history of a run, extended by new files; `complete` says whether it has all steps.

    While it is open, no other request extends it, so a column does not grow while it is read.
    """
    return _HISTORIES.open(library, place)


def _list_sources(place: RunPlace) -> dict[Source, Stamp]:
    """Return the files with answers and their stamps, evaluations first, in step order."""
    found: dict[Source, Stamp] = {}
    for folder in list_folder(place, "eval"):
        if (step := parse_step(folder)) is not None:
            for name, stamp in _list_stamps(place, "eval", folder).items():
                if name.endswith(ROWS):
                    found[step, name.removesuffix(ROWS), ("eval", folder, name)] = stamp
    for name, stamp in _list_stamps(place, "rollouts").items():
        if (step := parse_step_file(name)) is not None:
            found[step, "", ("rollouts", name)] = stamp
    return dict(sorted(found.items(), key=lambda item: (item[0][0], not item[0][1])))


def _list_stamps(place: RunPlace, *folder: str) -> dict[str, Stamp]:
    """Return the time and size of each entry of a folder by its name; links are not followed."""
    stamps: dict[str, Stamp] = {}
    if not list_folder(place, *folder):
        return stamps
    with suppress(OSError), os.scandir(place.locate(*folder)) as entries:
        for entry in islice(entries, MOST_ENTRIES):
            found = entry.stat(follow_symlinks=False)
            stamps[entry.name] = (found.st_mtime_ns, found.st_size)
    return stamps


def _read_sources(library: Library, place: RunPlace, history: History, stamps: dict[Source, Stamp]) -> None:
    """Read files that the history lacks until the time is up, but at least one; damaged ones count as read."""
    end = time.monotonic() + SECONDS
    missing = [source for source in stamps if source not in history.stamps]
    for done, source in enumerate(missing):
        if done and time.monotonic() > end:
            history.complete = False
            return
        step, task, parts = source
        history.stamps[source] = stamps[source]
        if (data := find_file(place, *parts)) and (groups := load_groups(library, data)):
            history.add(step, task, groups)
    history.complete = True
