"""Evaluates a run on dedicated servers while training continues.

At a due step the weights are written for the server; a thread loads them there, samples answers to the held-out
problems and grades them. Meanwhile training continues, and finished evaluations are recorded between two later steps,
under the step of their weights. Sampling and grading are those of an evaluation in the learner's process, so the
figures are too.

At most `WAITING` evaluations are pending: one runs, and the others wait for it. Training waits before adding one more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from qed.config.phases import Settings
from qed.errors import Interrupted, QedError
from qed.guards.signals import check_signals
from qed.loops.evaluate import MeasuredTask, measure_task
from qed.loops.setup import Setup
from qed.rewards.grader import Grader
from qed.sampling.base import Sampler
from qed.types import Problem

WAITING = 2  # most evaluations pending at once
TICK = 0.2  # seconds between checks while training waits for an evaluation
CLOSING = 30.0  # seconds for the thread to end after its requests are cancelled
Tasks = Mapping[str, Sequence[Problem]]


class EvaluationServer(Protocol):
    """Samples the answers of evaluations, with its own weights."""

    @property
    def sampler(self) -> Sampler:
        """The sampler on its servers; its `generate` may be called from another thread."""
        ...

    def prepare(self, model: Any, version: int) -> Callable[[], None]:
        """Write weights, and return a function that loads them from any thread; all ranks must call this."""
        ...

    def close(self) -> None:
        """Cancel all requests, and stop the servers that were started."""
        ...


@dataclass(frozen=True)
class Outcome:
    """A finished evaluation: its step, measured tasks and duration, and the reason if it failed."""

    step: int
    tasks: Mapping[str, MeasuredTask]
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class _Pending:
    step: int
    future: Future[Outcome]


@dataclass
class BackgroundEvaluator:
    """Runs evaluations on dedicated servers. All ranks must make the same calls; the first one does the work.

    Args:
        setup: setup of the run.
        server: samples the answers.
        grader: grades the answers; training uses its own at the same time.
    """

    setup: Setup
    server: EvaluationServer
    grader: Grader
    _pending: deque[_Pending] = field(default_factory=deque)  # on the first rank
    _steps: set[int] = field(default_factory=set)  # of pending evaluations, on all ranks
    _closed: bool = False

    def __post_init__(self) -> None:
        """Create the thread."""
        self._thread = ThreadPoolExecutor(1, "evaluation")

    @property
    def steps(self) -> frozenset[int]:
        """The steps whose evaluations are pending."""
        return frozenset(self._steps)

    def submit(self, step: int, tasks: Tasks, model: Any, settings: Settings) -> None:
        """Start evaluating a model's current weights, and return once they are written.

        Args:
            step: step of the weights.
            tasks: problems by task.
            model: model with the weights.
            settings: settings of the phase.

        Raises:
            Interrupted: a stop signal arrived while waiting for another evaluation.
            QedError: the weights cannot be written.
        """
        load = self.server.prepare(model, step)
        self._steps.add(step)
        if self.setup.parallel.is_first:
            future = self._thread.submit(self._measure, step, dict(tasks), load, settings)
            self._pending.append(_Pending(step, future))

    def collect(self, most: int = WAITING) -> list[Outcome]:
        """Return finished evaluations in order; wait until at most `most` are pending.

        Ranks other than the first receive no answers.

        Raises:
            Interrupted: a stop signal has arrived.
        """
        parallel, found = self.setup.parallel, list[Outcome]()
        while self._steps:
            finished = parallel.run_on_first(
                lambda: [self._strip(each) for each in self._take(len(self._steps) > most)]
            )
            own = self._taken if parallel.is_first else finished
            self._steps -= {outcome.step for outcome in finished}
            found += own
            if len(self._steps) <= most:
                break
            parallel.agree_on_stop(self.setup.stop)
            # The thread reports progress to the first rank's watchdog; other ranks report here.
            check_signals("evaluate", progress=not parallel.is_first)
        return found

    def close(self) -> None:
        """Stop pending evaluations and the servers; unfinished evaluations are repeated when the run resumes."""
        if self._closed:
            return
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.server.close()
        wait([each.future for each in self._pending], CLOSING)

    def _take(self, waits: bool) -> list[Outcome]:
        """Return the outcomes of finished evaluations, on the first rank; if `waits`, wait a moment for the next."""
        if waits and self._pending:
            wait([self._pending[0].future], TICK)
        self._taken: list[Outcome] = []
        while self._pending and self._pending[0].future.done():
            if isinstance(self._pending[0].future.exception(), Interrupted):
                break  # this thread stops for the same reason, and the evaluation is repeated later
            self._taken.append(self._pending.popleft().future.result())
        return self._taken

    def _strip(self, outcome: Outcome) -> Outcome:
        """Return an outcome without its answers, which other ranks do not need."""
        tasks = {name: MeasuredTask([], measured.summaries) for name, measured in outcome.tasks.items()}
        return Outcome(outcome.step, tasks, outcome.seconds, outcome.reason)

    def _measure(self, step: int, tasks: Tasks, load: Callable[[], None], settings: Settings) -> Outcome:
        """Load the weights, and measure all tasks; runs in the thread."""
        began, measured = time.perf_counter(), dict[str, MeasuredTask]()
        template, sampler = self.setup.materials[-1].template, self.server.sampler
        try:
            load()
            for name, problems in tasks.items():
                measured[name] = measure_task(problems, sampler, template, self.grader, settings, step)
        except Interrupted:
            raise
        except QedError as error:
            return Outcome(step, {}, 0.0, str(error))
        return Outcome(step, measured, time.perf_counter() - began)
