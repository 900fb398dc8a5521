"""Evaluates the policy of a phase between its steps, each step once, and remembers which was best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qed.config.phases import Settings
from qed.data.splits import VALIDATION
from qed.evaluation.rows import build_metrics
from qed.loops.evaluate import evaluate
from qed.loops.metrics import MetricsWriter, Stats
from qed.loops.setup import Setup
from qed.runs.run import Row, read_evaluations
from qed.training.best import VALIDATED, is_best, read_scores
from qed.types import Problem

EVALUATED = "time/evaluate"  # in the row of a complete evaluation, and in no other


class Evaluator:
    """Evaluates the policy of a phase.

    `scores` holds how well the validation part was answered, by step. `measure` is what the recipe itself measures on
    the validation part, `VALIDATED` among it; it is set before the phase begins.

    Args:
        setup: of the run.
        settings: of the phase.
        ends: the steps before its first one and at its last; there all tasks are evaluated.
        metrics: writes the rows.
        recorded: the run's rows so far, where it is resumed.
    """

    def __init__(
        self, setup: Setup, settings: Settings, ends: tuple[int, int], metrics: MetricsWriter, recorded: Sequence[Row]
    ) -> None:
        self.setup = setup
        self.settings = settings
        self.ends = ends
        self.metrics = metrics
        self.measure: Callable[[], Stats] | None = None
        self.measured = {row["step"] for row in recorded if VALIDATED in row}
        self.evaluated = {row["step"] for row in recorded if EVALUATED in row}
        self.scores = read_scores(setup.run.folder)

    def evaluate(self, step: int) -> None:
        """Evaluate the policy as it is after a step, unless that has been done."""
        timer = self.setup.timer
        with timer("evaluate"):
            if self.measure is not None and step not in self.measured:
                self._measure(self.measure, step)
            tasks = self._tasks(step)
            recorded = dict(read_evaluations(self.setup.run.folder)).get(step, {})
            done = step in self.evaluated and set(recorded) >= set(tasks)
            summaries = {} if done else evaluate(self.setup, self.settings, step, tasks)
        seconds = timer.pop("evaluate")
        if not done:
            self.metrics.write(step, {**build_metrics(summaries), EVALUATED: seconds})
            self.evaluated.add(step)

    def is_best(self, step: int) -> bool:
        """Whether the validation part was answered better after this step than after any before it."""
        if step == self.ends[0] or step not in self.evaluated | self.measured:
            return False
        self.scores = read_scores(self.setup.run.folder)
        return is_best(self.scores, step)

    def _measure(self, measure: Callable[[], Stats], step: int) -> None:
        figures = measure()
        self.metrics.write(step, figures)
        self.measured.add(step)
        self.setup.console.say(f"  step {step}, {VALIDATION}: {figures[VALIDATED]:.1%} of the pairs ranked right")

    def _tasks(self, step: int) -> dict[str, list[Problem]]:
        """Return the problems to ask after a step, by task.

        Between the ends only the validation part is asked, where there is one: the results that a run reports should
        not be looked at so often that they guide it.
        """
        answerable = [problem for problem in self.setup.validation if problem.answer]
        validation = {VALIDATION: answerable} if answerable else {}
        if validation and step not in self.ends:
            return validation
        return {**self.setup.benchmarks, **validation}
