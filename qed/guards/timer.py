"""Times the stages of a training step, and tells the watchdog which stage is on."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qed.guards import watchdog

REST = "step"  # the watchdog's name for what no stage covers


class StageTimer:
    """Adds up the wall-clock seconds of each stage: `with timer("sample"): ...`.

    Times are exclusive: while a stage runs inside another one, as grading does inside sampling, only the inner one
    counts. So the stages of a step never add up to more than the step.

    The names in metrics.jsonl are `time/STAGE`, in seconds: `sample`, `grade`, `score`, `update`, `sync` (the sampler
    loads the new weights) and `step`, which is the whole of them. Two stages run between steps. `time/evaluate` is in
    the evaluation's own row. `time/save` is in the row of the step that follows the save, because a checkpoint is
    written only when the row of its step is on the disk; the last save of a run is followed by no step and by no row.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.step = 0
        self.seconds: dict[str, float] = defaultdict(float)
        self._began = self._mark = clock()
        self._open: list[str] = []  # the stages that are on, outermost first

    def begin_step(self, step: int) -> None:
        """Start the clock of a step."""
        self.step, self._began = step, self.clock()
        self._tell()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a stage."""
        self._add()
        self._open.append(stage)
        self._tell()
        try:
            yield
        finally:
            self._add()
            self._open.pop()
            self._tell()

    def pop(self, stage: str) -> float:
        """Return the seconds of one stage, and forget them."""
        return self.seconds.pop(stage, 0.0)

    def end_step(self) -> dict[str, float]:
        """Return the metrics of all stages since the last step and of the whole step, and forget them."""
        row = {f"time/{stage}": seconds for stage, seconds in self.seconds.items()}
        self.seconds.clear()
        return row | {"time/step": self.clock() - self._began}

    def _add(self) -> None:
        """Count the time since the last change for the innermost stage."""
        now = self.clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._mark
        self._mark = now

    def _tell(self) -> None:
        watchdog.enter_stage(self._open[-1] if self._open else REST, self.step)
