"""Evaluates a run on a server of its own while training goes on.

At a due step the weights are written for the server, and a thread has them loaded there, samples the held-out problems
and grades the answers. Training goes on meanwhile; what is finished is recorded between two later steps, under the step
of its weights. Sampling and grading are those of an evaluation in the learner's process, so the figures are too.

At most `WAITING` evaluations are under way: one is made, the others wait for it. Before one more, training waits.
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

WAITING = 2  # evaluations under way, at most
TICK = 0.2  # seconds between two looks, while training waits for one
CLOSING = 30.0  # seconds for the thread to end, once its requests are cancelled
Tasks = Mapping[str, Sequence[Problem]]


class EvaluationServer(Protocol):
    """What samples the evaluations, with weights of its own."""

    @property
    def sampler(self) -> Sampler:
        """The sampler of its servers; its `generate` may be called from another thread."""
        ...

    def prepare(self, model: Any, version: int) -> Callable[[], None]:
        """Write weights, and return what loads them, from any thread; all ranks call it."""
        ...

    def close(self) -> None:
        """End all requests and the servers that were started."""
        ...


@dataclass(frozen=True)
class Outcome:
    """A finished evaluation: its step, the tasks that were measured, the seconds, and why it failed, if it did."""

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
    """Evaluations on servers of their own. All ranks call its methods alike; the first one does the work.

    Args:
        setup: of the run.
        server: samples.
        grader: of the answers; training's own one is in use meanwhile.
    """

    setup: Setup
    server: EvaluationServer
    grader: Grader
    _pending: deque[_Pending] = field(default_factory=deque)  # on the first rank
    _steps: set[int] = field(default_factory=set)  # under way, on all ranks
    _closed: bool = False

    def __post_init__(self) -> None:
        """Make the thread."""
        self._thread = ThreadPoolExecutor(1, "evaluation")

    @property
    def steps(self) -> frozenset[int]:
        """The steps whose evaluations are under way."""
        return frozenset(self._steps)

    def submit(self, step: int, tasks: Tasks, model: Any, settings: Settings) -> None:
        """Evaluate a model's weights as they are now, and return once they are written.

        Args:
            step: of the weights.
            tasks: the problems by task.
            model: has the weights.
            settings: of the phase.

        Raises:
            Interrupted: a stop signal came while it waited for another evaluation.
            QedError: the weights cannot be written.
        """
        load = self.server.prepare(model, step)
        self._steps.add(step)
        if self.setup.parallel.is_first:
            future = self._thread.submit(self._measure, step, dict(tasks), load, settings)
            self._pending.append(_Pending(step, future))

    def collect(self, most: int = WAITING) -> list[Outcome]:
        """Return what is finished, in order; wait until at most `most` evaluations are under way.

        On other ranks than the first the answers are left out.

        Raises:
            Interrupted: a stop signal has come.
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
            # The thread reports its own progress to the watchdog; other ranks trust the first one's.
            check_signals("evaluate", progress=not parallel.is_first)
        return found

    def close(self) -> None:
        """End what is under way and the servers; what is not finished is made again when the run resumes."""
        if self._closed:
            return
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.server.close()
        wait([each.future for each in self._pending], CLOSING)

    def _take(self, waits: bool) -> list[Outcome]:
        """Return the outcomes of the evaluations that are finished, on the first rank; wait a moment if asked to."""
        if waits and self._pending:
            wait([self._pending[0].future], TICK)
        self._taken: list[Outcome] = []
        while self._pending and self._pending[0].future.done():
            if isinstance(self._pending[0].future.exception(), Interrupted):
                break  # this thread stops for the same reason, and the evaluation is made again
            self._taken.append(self._pending.popleft().future.result())
        return self._taken

    def _strip(self, outcome: Outcome) -> Outcome:
        """Return an outcome without its answers, which the other ranks do not need."""
        tasks = {name: MeasuredTask([], measured.summaries) for name, measured in outcome.tasks.items()}
        return Outcome(outcome.step, tasks, outcome.seconds, outcome.reason)

    def _measure(self, step: int, tasks: Tasks, load: Callable[[], None], settings: Settings) -> Outcome:
        """Load the weights, and measure all tasks; in the thread."""
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
