"""Samples the steps of a phase ahead of the learner, in a thread, with weights that are a fixed number of updates old.

With a staleness of k, step n is sampled by version max(first, n - 1 - k): the weights after that step, or those at the
start of the phase. So the weights that sample a step do not depend on which thread is faster, and runs are
reproducible. The thread takes the steps in order, and waits before each for the version that it needs. The learner
hands that over after an update, with the algorithm as it is then.

The checkpoint of step s holds the answers of the steps up to s + k, which are sampled by weights older than its own,
and the collector's state after them. Only its own weights are needed to resume from it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from qed.algorithms.base import Algorithm, StepContext
from qed.errors import Interrupted
from qed.guards.signals import Stop, check_signals, stop_thread_by
from qed.guards.timer import StageTimer
from qed.rollout.collector import CollectedStep, RolloutCollector
from qed.rollout.replay import ReplayBuffer, Row
from qed.rollout.stages import flatten
from qed.types import Groups

POLL_SECONDS = 0.2  # between checks for a signal while one thread waits for the other
CLOSE_SECONDS = 10.0  # for the thread to end
# Writes a version's weights where the sampler reads them, and returns a function that loads them in any thread.
Prepare = Callable[[int], Callable[[], None]]


@dataclass(frozen=True)
class Steps:
    """The steps of a phase, numbered over the run: after `first`, up to and including `last`.

    `offset` counts the run's steps before the phase, `total` the phase's steps; `seed` is the run's.
    """

    first: int
    last: int
    offset: int
    total: int
    seed: int

    def build_context(self, step: int) -> StepContext:
        """Return the context of a step for the algorithm."""
        return StepContext(step - self.offset, self.total, self.seed)


@dataclass
class _Version:
    """The weights after a step: a function that loads them, and the algorithm once the step is complete."""

    load: Callable[[], None]
    algorithm: Algorithm | None = None


class AheadCollector:
    """Collects the steps of a phase in a thread, which runs within the context `running`.

    Args:
        collector: collector of the phase, in its initial state; it is copied.
        prepare: prepares a version's weights for the sampler; called in the learner's thread.
        steps: steps of the phase.
        staleness: number of updates that the sampling policy is behind, at least 1.
        lends: whether `lend` is used, so the sampler needs every version.
        say: prints a line.
    """

    def __init__(
        self,
        collector: RolloutCollector,
        prepare: Prepare,
        steps: Steps,
        staleness: int,
        *,
        lends: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.prepare, self.steps, self.staleness, self.lends, self.say = prepare, steps, staleness, lends, say
        self._timer = StageTimer(watched=False)
        self._collector = replace(collector.copy(), timer=self._timer)
        self._pool = collector.pool  # the learner's thread writes into it
        self._changed = threading.Condition()  # guards the attributes below
        self._versions: dict[int, _Version] = {}
        # For each collected step, from the last complete one on: its groups, and the collector's state after it.
        self._collected: dict[int, tuple[CollectedStep, RolloutCollector]] = {}
        self._taken = self._complete = steps.first
        self._limit = steps.last  # the last step to collect
        self._error: BaseException | None = None
        # The version loaded in the sampler; guarded by `_turn`.
        self._loaded: int | None = getattr(collector.sampler, "version", None)
        self._turn = threading.Lock()  # held by the thread that uses the sampler
        self._stop = Stop()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="sampling ahead", daemon=True)

    def choose_version(self, step: int) -> int:
        """Return the version that samples a step."""
        return max(self.steps.first, step - 1 - self.staleness)

    @property
    def stage(self) -> str:
        """The stage of the learner's timer in which it takes a step's groups."""
        return "wait"

    @contextmanager
    def running(self, algorithm: Algorithm) -> Iterator[AheadCollector]:
        """Run the thread within the context; `algorithm` is that of the first step.

        After a stop signal, the thread first samples what the checkpoint of the last complete step needs.
        """
        self.load(self.steps.first)
        self.release(self.steps.first, algorithm)
        self._thread.start()
        try:
            yield self
        except Interrupted:
            self._finish_checkpoint()
            raise
        except Exception:
            self._has_failed = True
            raise
        finally:
            self._stop.received = signal.SIGTERM
            with self._changed:
                self._changed.notify_all()
            self._thread.join(CLOSE_SECONDS)

    def take(self, step: int, algorithm: Algorithm) -> CollectedStep:
        """Return the groups of a step once they are collected.

        Raises:
            Interrupted: a stop signal has arrived.
            Exception: the error that ended the thread.
        """
        check_signals("wait", progress=False)
        collected, _ = self._await_step(step, lambda: check_signals("wait", progress=False))
        self._taken = step
        return collected

    def load(self, version: int) -> None:
        """Write a version's weights for the sampler if it will use them; call this in the learner's thread.

        The collector samples with them once they are released.
        """
        if self.lends or version <= self.choose_version(self.steps.last):
            prepared = _Version(self.prepare(version))
            with self._changed:
                self._versions[version] = prepared

    def release(self, version: int, algorithm: Algorithm) -> None:
        """Let the thread sample with a version's weights and the algorithm at that point."""
        with self._changed:
            if version in self._versions:
                self._versions[version].algorithm = algorithm
            self._changed.notify_all()

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Lend the sampler, with the newest weights, to the learner's thread between two steps."""
        while not self._turn.acquire(timeout=POLL_SECONDS):
            check_signals("evaluate", progress=False)
        try:
            self._load_into_sampler(max(self._versions))
            yield
        finally:
            self._turn.release()

    def copy(self) -> AheadState:
        """Mark the last taken step as complete, and return the collector's state for its checkpoint."""
        with self._changed:
            self._complete = self._taken
            self._collected = {step: each for step, each in self._collected.items() if step >= self._complete}
        return AheadState(self, self._complete, self._pool.copy())

    def settle(self, step: int) -> RolloutCollector:
        """Wait until all answers of a step's checkpoint are collected, and return the collector's state for it.

        After an error, it holds only what was collected so far; when the run resumes, newer weights sample the rest.

        Raises:
            Interrupted: a stop signal has arrived.
            Exception: the error that ended the thread.
        """
        last = min(step + self.staleness, self.steps.last)
        if self._has_failed:
            with self._changed:
                last = max((number for number in self._collected if number <= last), default=last)
        _, behind = self._await_step(last, lambda: check_signals("wait", progress=False))
        with self._changed:
            ahead = {number: self._collected[number][0] for number in range(step + 1, last + 1)}
        return replace(behind, ahead=behind.ahead | ahead)

    def _finish_checkpoint(self) -> None:
        """Collect the remaining steps of the last complete step's checkpoint, regardless of further signals."""
        with self._changed:
            self._limit = min(self._complete + self.staleness, self.steps.last)
            missing = [step for step in range(self._complete + 1, self._limit + 1) if step not in self._collected]
        if not missing or self._complete == self.steps.first:  # the checkpoint of the first step holds no answers
            return
        self.say(
            f"Sampling {len(missing)} more step(s), whose answers the checkpoint needs because older weights than its "
            "own sample them. A later signal ends the run at once; it then resumes from the previous checkpoint."
        )
        with suppress(Exception):  # the error that ended the thread is raised when the checkpoint is written
            self._await_step(self._limit, lambda: None)

    def _await_step(self, step: int, check: Callable[[], None]) -> tuple[CollectedStep, RolloutCollector]:
        """Wait until a step is collected; raise the error that ended the thread, if any."""
        while True:
            with self._changed:
                if step in self._collected:
                    return self._collected[step]
                if self._error is not None:
                    raise self._error
                self._changed.wait(POLL_SECONDS)
            check()

    def _run(self) -> None:
        """Collect all steps; runs in the thread."""
        try:
            with stop_thread_by(self._stop):
                for step in range(self.steps.first + 1, self.steps.last + 1):
                    collected = self._collector.ahead.pop(step, None) or self._collect(step)
                    with self._changed:
                        self._collected[step] = collected, self._collector.copy()
                        needed = min(self.choose_version(step + 1), max(self._versions))  # `lend` takes the newest
                        self._versions = {number: one for number, one in self._versions.items() if number >= needed}
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 -- raised again in the learner's thread
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _collect(self, step: int) -> CollectedStep:
        version = self.choose_version(step)
        with self._timer("idle"):
            algorithm = self._await_version(version, step)
        with self._turn:
            with self._timer("load"):
                self._load_into_sampler(version)
            with self._timer("sample"):
                collected = self._collector.collect(algorithm, self.steps.build_context(step), version)
        times = {f"time/ahead_{stage}": seconds for stage, seconds in self._timer.seconds.items()}
        self._timer.seconds.clear()
        return replace(collected, times=times)

    def _await_version(self, version: int, step: int) -> Algorithm:
        """Wait until a version is released and the step may be collected; return the version's algorithm."""
        while True:
            with self._changed:
                algorithm = self._versions[version].algorithm if version in self._versions else None
                if algorithm is not None and step <= self._limit:
                    return algorithm
                self._changed.wait(POLL_SECONDS)
            check_signals("ahead", progress=False)

    def _load_into_sampler(self, version: int) -> None:
        if version != self._loaded:
            with self._changed:
                load = self._versions[version].load
            load()
            self._loaded = version


class AheadState:
    """The state of an ahead-sampling collector for a step's checkpoint; reading it waits for the answers."""

    def __init__(self, source: AheadCollector, step: int, pool: ReplayBuffer) -> None:
        self._source, self._step, self._pool = source, step, pool

    @cached_property
    def _settled(self) -> RolloutCollector:
        return replace(self._source.settle(self._step), pool=self._pool)

    @property
    def position(self) -> int:
        """The number of problems that have been taken from the stream."""
        return self._settled.position

    def to_rows(self) -> list[Row]:
        """Return the state as rows of JSON; see `RolloutCollector`."""
        return self._settled.to_rows()


def measure_staleness(groups: Groups, version: int) -> dict[str, float]:
    """Measure how many updates a step's sampling policies are behind `version`, the learner's."""
    ages = [version - rollout.version for rollout in flatten(groups) if rollout.source == "policy"]
    return {"rollout/staleness_mean": fmean(ages), "rollout/staleness_max": max(ages)} if ages else {}
