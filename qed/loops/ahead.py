"""Sources of an online phase's steps: sampled in turn with the updates, or ahead of them in a thread.

`rollout.max_staleness` chooses: 0 alternates sampling and training; k >= 1 samples with weights that are k updates old,
see `qed.rollout.ahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from qed.algorithms.base import Algorithm
from qed.errors import UsageError
from qed.loops.phase import Phase
from qed.models.load import find_end_ids
from qed.models.precision import read_precision
from qed.rollout.ahead import AheadCollector, Steps
from qed.rollout.collector import CollectedStep, RolloutCollector
from qed.sampling import native
from qed.sampling.base import Sampler
from qed.training.learner import Learner


class StepSource(Protocol):
    """Provides the groups of each step to the learner, and takes the learner's weights after each update.

    `stage` is the timer's stage in which the learner takes a step's groups.
    """

    @property
    def stage(self) -> str:
        """The timer's stage in which the learner takes a step's groups."""
        ...

    def take(self, step: int, algorithm: Algorithm) -> CollectedStep:
        """Return the groups of a step; `algorithm` is the learner's current one."""
        ...

    def load(self, version: int) -> None:
        """Give the sampler the learner's weights."""
        ...

    def release(self, version: int, algorithm: Algorithm) -> None:
        """Let the sampler use these weights, with the algorithm as it is after the step."""
        ...


@dataclass(frozen=True)
class InTurn:
    """Samples a step when the learner takes it, with the weights after the previous step."""

    collector: RolloutCollector
    learner: Learner
    steps: Steps
    stage: str = "sample"

    def take(self, step: int, algorithm: Algorithm) -> CollectedStep:
        """Sample and grade a step."""
        return self.collector.collect(algorithm, self.steps.build_context(step))

    def load(self, version: int) -> None:
        """Give the sampler the learner's weights."""
        self.collector.sampler.load(self.learner.weights(), version=version)

    def release(self, version: int, algorithm: Algorithm) -> None:
        """Do nothing, because `take` receives the algorithm."""


@contextmanager
def open_source(phase: Phase, collector: RolloutCollector) -> Iterator[StepSource]:
    """Yield the source of a phase's steps; sampling ahead ends with the context.

    Args:
        phase: the phase, already begun.
        collector: collector of the phase, with its saved state if the phase resumes.

    Raises:
        UsageError: the sampler reads the learner's own weights, so it cannot sample ahead.
    """
    settings, learner = phase.settings, phase.learner
    steps = Steps(phase.first, phase.last, phase.offset, settings.learner.steps, settings.run.seed)
    staleness = settings.rollout.max_staleness
    if not staleness:
        yield InTurn(collector, learner, steps)
        return
    prepare = require_prepare(collector.sampler)
    setup, native_servers = phase.setup, settings.sampling.sampler == "native"
    ahead = AheadCollector(
        collector,
        lambda version: prepare(learner.weights(), version),
        steps,
        staleness,
        lends=not native_servers,
        say=setup.console.say,
    )
    phase.checkpointer.collector = ahead
    setup.lend_sampler = _lend_own(phase) if native_servers else lambda: _lend(ahead, setup.sampler)
    try:
        with ahead.running(learner.algorithm):
            yield ahead
    finally:
        setup.lend_sampler = None


def require_prepare(sampler: Sampler) -> Callable[[Any, int], Callable[[], None]]:
    """Return a sampler's `prepare(weights, version)`, which returns a function that loads the weights in any thread.

    Raises:
        UsageError: the sampler has none, because it reads the weights of this process.
    """
    prepare: Callable[[Any, int], Callable[[], None]] | None = getattr(sampler, "prepare", None)
    if prepare is None:
        raise UsageError(
            "rollout.max_staleness samples with older weights than the learner's, but this sampler reads the "
            "learner's own. Use --sampling.sampler native, vllm or server, or set rollout.max_staleness=0. A custom "
            "sampler needs a method prepare(weights, version) that copies the weights and returns a function that "
            "loads the copy."
        )
    return prepare


@contextmanager
def _lend(ahead: AheadCollector, sampler: Sampler) -> Iterator[Sampler]:
    """Yield the collecting sampler with the newest weights, paused between two of its steps."""
    with ahead.lend():
        yield sampler


def _lend_own(phase: Phase) -> Callable[[], AbstractContextManager[Sampler]]:
    """Return a function that lends a sampler of the learner's own model while the servers keep sampling."""
    setup, settings = phase.setup, phase.settings
    ends = find_end_ids(setup.model, setup.tokenizer, setup.template.leaf.CHAT)
    rows, precision = settings.sampling.rows_per_batch, read_precision(settings.model)
    sampler = native.make(setup.model, setup.tokenizer, ends, rows, precision)

    def lend() -> AbstractContextManager[Sampler]:
        sampler.load(phase.learner.weights(), version=phase.checkpointer.step)
        return nullcontext(sampler)

    return lend
