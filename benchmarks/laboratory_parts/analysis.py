"""Analysis of the committed summaries: accuracies with intervals over seeds, and tests against the controls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np

from laboratory_parts.methods import METHODS, Method
from laboratory_parts.runs import Summary, read_greedy, read_sampled
from laboratory_parts.tasks import TASKS
from qed.evaluation.arms import compute_arms_difference
from qed.evaluation.distributions import Floats, compute_student_quantile
from qed.evaluation.intervals import adjust_holm

LEVEL = 0.05
SAMPLED, GREEDY = "sampled", "greedy"  # the measures; the first is the primary one


@dataclass(frozen=True)
class Arm:
    """All final runs of a method on a task, or the start or the teacher as a single run."""

    name: str
    kind: str
    runs: Sequence[Summary]
    rate: float = 0.0

    @cached_property
    def sampled(self) -> Floats:
        """Return the share of right sampled answers, [seeds, problems]; a diverged run has none right."""
        return self._read("test", sampled=True)

    @cached_property
    def greedy(self) -> Floats:
        """Return whether the greedy answer is right, [seeds, problems]."""
        return self._read("test", sampled=False)

    @cached_property
    def other(self) -> Floats:
        """Return the share of right sampled answers to the other task, [seeds, problems]."""
        return self._read("other", sampled=True)

    def read(self, measure: str) -> Floats:
        """Return the held-out answers under a measure, `sampled` or `greedy`."""
        return self.sampled if measure == SAMPLED else self.greedy

    @property
    def lost(self) -> int:
        """Return the number of runs that diverged."""
        return sum("error" in run for run in self.runs)

    def average(self, figure: str) -> float:
        """Return the mean over the seeds of a figure of the held-out answers; NaN if all diverged."""
        values = [run["parts"]["test"][figure] for run in self.runs if "error" not in run]
        return fmean(values) if values else float("nan")

    def _read(self, part: str, sampled: bool) -> Floats:
        read = read_sampled if sampled else read_greedy
        found = [read(run["parts"][part]) for run in self.runs if "error" not in run]
        size = len(found[0]) if found else 1
        return np.array([*found, *[[0.0] * size] * self.lost])


@dataclass(frozen=True)
class Difference:
    """The difference of two arms with its 95 % interval over problems and seeds, and its p-value."""

    mean: float
    low: float
    high: float
    p_value: float | None


@dataclass(frozen=True)
class TaskStudy:
    """The summaries of a task."""

    task: str
    budget: float
    start: Arm
    teacher: Arm
    arms: Sequence[Arm]
    skipped: Sequence[str]

    def list_kind(self, *kinds: str) -> list[Arm]:
        """Return the arms of these kinds."""
        return [arm for arm in self.arms if arm.kind in kinds]

    def find_best_control(self, measure: str = SAMPLED) -> Arm:
        """Return the control with the highest held-out accuracy."""
        return max(self.list_kind("control"), key=lambda arm: float(arm.read(measure).mean()))

    def test(self, against: Arm, arms: Sequence[Arm], measure: str = SAMPLED) -> dict[str, Difference]:
        """Compare arms with another one, with p-values Holm-adjusted over the arms."""
        found = [compare(against, arm, measure) for arm in arms]
        adjusted = adjust_holm([each.p_value for each in found])
        return {
            arm.name: Difference(each.mean, each.low, each.high, p_value)
            for arm, each, p_value in zip(arms, found, adjusted, strict=True)
        }


def compare(before: Arm, after: Arm, measure: str = SAMPLED) -> Difference:
    """Compare the held-out accuracy of two arms on the same problems."""
    old, new = before.read(measure), after.read(measure)
    # An arm whose runs have all diverged has a single problem without a right answer.
    width = max(old.shape[1], new.shape[1])
    old, new = (np.broadcast_to(each, (len(each), width)) for each in (old, new))
    low, high, p_value, _ = compute_arms_difference(old, new)
    return Difference(float(new.mean() - old.mean()), low, high, p_value)


def compute_seed_interval(values: Floats) -> tuple[float, float]:
    """Compute Student's 95 % interval over seeds of the mean of runs, [seeds, problems]; for one run, its mean."""
    means = values.mean(1)
    if len(means) < 2:
        return float(means[0]), float(means[0])
    quantile = float(compute_student_quantile(np.array(float(len(means) - 1))))
    half = quantile * float(means.std(ddof=1)) / len(means) ** 0.5
    return max(0.0, float(means.mean()) - half), min(1.0, float(means.mean()) + half)


def read_studies(folder: Path) -> list[TaskStudy]:
    """Read the committed summaries of all tasks that have one."""
    files = [folder / f"{task}.json" for task in TASKS]
    return [_build_study(json.loads(file.read_text(encoding="utf-8"))) for file in files if file.is_file()]


def _build_study(summary: Summary) -> TaskStudy:
    found = summary["methods"]
    return TaskStudy(
        summary["task"],
        summary["budget"],
        Arm("start", "model", [summary["start"]]),
        Arm("teacher", "model", [summary["teacher"]]),
        [_build_arm(method, found[method.name]) for method in METHODS if method.name in found],
        [method.name for method in METHODS if method.name not in found],
    )


def _build_arm(method: Method, found: Summary) -> Arm:
    return Arm(method.name, method.kind, found["runs"], found["rate"])
