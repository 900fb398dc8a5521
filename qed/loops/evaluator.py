"""Evaluates the policy of a phase between its steps, at most once for each step, and finds the best step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qed.config.phases import Settings
from qed.data.splits import VALIDATION
from qed.errors import RewardFailed
from qed.evaluation.rows import build_metrics
from qed.loops.evaluate import Summaries, evaluate, record_task
from qed.loops.metrics import MetricsWriter, Stats
from qed.loops.setup import Setup
from qed.runs.run import Row, read_evaluation
from qed.training.best import is_best, read_scores
from qed.types import Problem

EVALUATED = "time/evaluate"  # only in the row of a complete evaluation


@dataclass(frozen=True)
class Measure:
    """A measure of the validation part besides graded answers: its main metric, and a format string to print it."""

    name: str
    compute: Callable[[], Stats]
    text: str


class Evaluator:
    """Evaluates the policy of a phase.

    `scores` holds the validation score of each evaluated step. `measure` may be set before the phase begins.

    Args:
        setup: setup of the run.
        settings: settings of the phase.
        ends: the step before the phase's first, and its last step; all tasks are evaluated at both.
        metrics: writes the rows of metrics.jsonl.
        recorded: rows already in metrics.jsonl if the run is resumed.
    """

    def __init__(
        self, setup: Setup, settings: Settings, ends: tuple[int, int], metrics: MetricsWriter, recorded: Sequence[Row]
    ) -> None:
        self.setup = setup
        self.settings = settings
        self.ends = ends
        self.metrics = metrics
        self.recorded = recorded
        self.measure: Measure | None = None
        self.measured: set[int] = set()
        self.evaluated = {row["step"] for row in recorded if EVALUATED in row}
        self.scores = self._read_scores()
        wanted = settings.evaluation
        if setup.validation and not wanted.at_end and not 0 < wanted.every <= ends[1] - ends[0]:
            setup.console.say(
                f"Warning: problems are held out for validation, but no step of {settings.method} will be evaluated on "
                "them, so there will be no best checkpoint: set evaluation.every or evaluation.at_end."
            )

    def evaluate(self, step: int) -> None:
        """Evaluate the policy after a step unless it has been; in the background if there is a server for that."""
        timer = self.setup.timer
        with timer("evaluate"):
            if self.measure is not None:
                self._measure(self.measure, step)
            tasks = self._select_tasks(step)
            done = self._is_recorded(step, tasks)
            background = self.setup.background
            summaries = self._evaluate_now(step, tasks) if not done and background is None else {}
        seconds = timer.pop("evaluate")
        if not done and background is not None:
            background.submit(step, tasks, self.setup.model, self.settings)
        elif not done and summaries is not None:
            self._record(step, summaries, seconds)

    def _evaluate_now(self, step: int, tasks: Mapping[str, Any]) -> dict[str, Summaries] | None:
        """Evaluate in this process; return None if the reward failed on all answers to a task of a trained policy."""
        try:
            return evaluate(self.setup, self.settings, step, tasks)
        except RewardFailed as error:
            if step == 0:  # nothing is lost yet
                raise
            self._report_missed(step, str(error))
            return None

    def collect(self, most: int) -> list[int]:
        """Record finished background evaluations, and return the steps whose evaluation has ended.

        Args:
            most: wait until at most this many are still running.

        Raises:
            Interrupted: a stop signal arrived while waiting.
        """
        background = self.setup.background
        outcomes = [] if background is None else background.collect(most)
        for outcome in outcomes:
            if outcome.reason:
                self._report_missed(outcome.step, outcome.reason)
                continue
            for task, measured in outcome.tasks.items() if self.setup.parallel.is_first else ():
                record_task(self.setup, outcome.step, task, measured)
            summaries = {task: measured.summaries for task, measured in outcome.tasks.items()}
            self._record(outcome.step, summaries, outcome.seconds)
        return [outcome.step for outcome in outcomes]

    def evaluate_here(self, step: int) -> None:
        """Evaluate the policy after a step in the learner's process, if the evaluation server has failed."""
        if not self._is_recorded(step, self._select_tasks(step)):
            background, self.setup.background = self.setup.background, None
            try:
                self.evaluate(step)
            finally:
                self.setup.background = background

    def may_be_best(self, step: int) -> bool:
        """Return whether a step whose evaluation is still running can become the best one."""
        background = self.setup.background
        pending = background is not None and step in background.steps
        return pending and step != self.ends[0] and VALIDATION in self._select_tasks(step)

    def repeat(self, step: int, model: Any) -> None:
        """Evaluate an earlier step, whose evaluation was interrupted, in the background; `model` has its weights."""
        tasks = self._select_tasks(step)
        if self.setup.background is not None and not self._is_recorded(step, tasks):
            self.setup.background.submit(step, tasks, model, self.settings)

    def report_missed(self, step: int, reason: str) -> None:
        """Warn that a step has no evaluation, unless it has one."""
        if not self._is_recorded(step, self._select_tasks(step)):
            self._report_missed(step, reason)

    def find_best(self) -> int | None:
        """Return the step with the best validation score, the earliest if several are equal; None without scores."""
        return max(self.scores, key=lambda step: (self.scores[step], -step), default=None)

    def is_best(self, step: int) -> bool:
        """Return whether this step has the best validation score so far."""
        if step == self.ends[0] or step not in self.evaluated | self.measured:
            return False
        self.scores = self._read_scores()
        return is_best(self.scores, step)

    def _is_recorded(self, step: int, tasks: Mapping[str, object]) -> bool:
        folder = self.setup.run.folder
        recorded = self.setup.parallel.run_on_first(lambda: read_evaluation(folder, step))
        return step in self.evaluated and set(recorded) >= set(tasks)

    def _record(self, step: int, summaries: dict[str, Summaries], seconds: float) -> None:
        self.metrics.write(step, {**build_metrics(summaries), EVALUATED: seconds})
        self.evaluated.add(step)

    def _report_missed(self, step: int, reason: str) -> None:
        self.setup.run.event("evaluation_missed", step=step, reason=reason)
        self.setup.console.say(f"Warning: step {step} has no evaluation: {reason}")

    def _read_scores(self) -> dict[int, float]:
        return self.setup.parallel.run_on_first(lambda: read_scores(self.setup.run.folder))

    def _measure(self, measure: Measure, step: int) -> None:
        if not any(row["step"] == step and measure.name in row for row in self.recorded) and step not in self.measured:
            figures = measure.compute()
            self.metrics.write(step, figures)
            self.setup.console.say(f"  step {step}, {VALIDATION}: {measure.text.format(figures[measure.name])}")
        self.measured.add(step)

    def _select_tasks(self, step: int) -> dict[str, list[Problem]]:
        """Return the problems to evaluate after a step, by task.

        Between the ends these are only the validation problems, if there are any: the benchmarks that a run reports
        should not guide decisions during training.
        """
        if self.settings.algorithm.has_scalar_head:
            return {}  # such a model writes no answers
        answerable = [problem for problem in self.setup.validation if problem.answer]
        validation = {VALIDATION: answerable} if answerable else {}
        if validation and step not in self.ends:
            return validation
        return {**self.setup.benchmarks, **validation}
