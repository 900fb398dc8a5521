"""Evaluates the policy of a phase between its steps, at most once for each step, and knows which step was best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qed.config.phases import Settings
from qed.data.splits import VALIDATION
from qed.evaluation.rows import build_metrics
from qed.loops.evaluate import evaluate
from qed.loops.metrics import MetricsWriter, Stats
from qed.loops.setup import Setup
from qed.runs.run import Row, read_evaluations
from qed.training.best import is_best, read_scores
from qed.types import Problem

EVALUATED = "time/evaluate"  # in the row of a complete evaluation, and in no other


@dataclass(frozen=True)
class Measure:
    """A measure of the validation part besides the evaluation of answers: its main metric, and a text to print it."""

    name: str
    compute: Callable[[], Stats]
    text: str


class Evaluator:
    """Evaluates the policy of a phase.

    `scores` holds the validation score of each evaluated step. `measure` may be set before the phase begins.

    Args:
        setup: of the run.
        settings: of the phase.
        ends: the step before the phase's first one, and its last step; at these all tasks are evaluated.
        metrics: writes the rows.
        recorded: the rows of metrics.jsonl so far, if the run is resumed.
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

    def evaluate(self, step: int) -> None:
        """Evaluate the policy after a step, unless that has been done."""
        timer = self.setup.timer
        with timer("evaluate"):
            if self.measure is not None:
                self._measure(self.measure, step)
            tasks = self._select_tasks(step)
            folder = self.setup.run.folder
            recorded = self.setup.parallel.run_on_first(lambda: dict(read_evaluations(folder))).get(step, {})
            done = step in self.evaluated and set(recorded) >= set(tasks)
            summaries = {} if done else evaluate(self.setup, self.settings, step, tasks)
        seconds = timer.pop("evaluate")
        if not done:
            self.metrics.write(step, {**build_metrics(summaries), EVALUATED: seconds})
            self.evaluated.add(step)

    def is_best(self, step: int) -> bool:
        """Return whether this step has the best validation score so far."""
        if step == self.ends[0] or step not in self.evaluated | self.measured:
            return False
        self.scores = self._read_scores()
        return is_best(self.scores, step)

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

        Between the ends these are only the validation problems, if there are any: decisions during training should not
        be guided by the benchmarks that a run reports.
        """
        answerable = [problem for problem in self.setup.validation if problem.answer]
        validation = {VALIDATION: answerable} if answerable else {}
        if validation and step not in self.ends:
            return validation
        return {**self.setup.benchmarks, **validation}
