"""Time the stages of a training step, and report the current stage to the watchdog."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from qed.guards import watchdog

REST = "step"  # the watchdog's name for the time outside of all stages


class StageTimer:
    """Adds up the wall-clock seconds of each stage: `with timer("sample"): ...`.

    Times are exclusive: while a stage runs inside another one, as grading does inside sampling, only the inner one is
    timed. So the stages of a step never add up to more than the step.

    The names in metrics.jsonl are `time/STAGE`, in seconds: `sample`, `grade`, `score`, `update`, `sync` (the sampler
    loads the new weights) and `step`, the whole step. With `rollout.max_staleness`, `wait` (for answers that another
    thread samples) replaces the first two. Three stages run between steps: `time/evaluate` is in the row of the
    evaluation, and `time/save` and `time/profile` (writing a trace) in the row of the next step, because they run
    after the row of their step is written. After the last step of a run they are not recorded.

    A timer belongs to one thread. Only the learner's timer is `watched`, that is, reports its stage to the watchdog.

    Args:
        clock: returns the time in seconds.
        watched: whether to report the stages to the watchdog.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, watched: bool = True) -> None:
        self.clock = clock
        self.watched = watched
        self.step = 0
        self.seconds: dict[str, float] = defaultdict(float)
        # Labels a stage in a profiler's trace while one is recorded.
        self.annotate: Callable[[str], AbstractContextManager[object]] = nullcontext
        self._began = self._mark = clock()
        self._open: list[str] = []  # the current stages, outermost first

    def begin_step(self, step: int) -> None:
        """Start the timer of a step."""
        self.step, self._began = step, self.clock()
        self._notify_watchdog()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a stage."""
        self._add_time()
        self._open.append(stage)
        self._notify_watchdog()
        try:
            with self.annotate(stage):
                yield
        finally:
            self._add_time()
            self._open.pop()
            self._notify_watchdog()

    def pop(self, stage: str) -> float:
        """Return the seconds of one stage, and reset them."""
        return self.seconds.pop(stage, 0.0)

    def end_step(self) -> dict[str, float]:
        """Return the metrics of all stages since the last step and of the whole step, and reset them."""
        row = {f"time/{stage}": seconds for stage, seconds in self.seconds.items()}
        self.seconds.clear()
        return row | {"time/step": self.clock() - self._began}

    def _add_time(self) -> None:
        """Add the time since the last change to the innermost stage."""
        now = self.clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._mark
        self._mark = now

    def _notify_watchdog(self) -> None:
        if self.watched:
            watchdog.enter_stage(self._open[-1] if self._open else REST, self.step)
