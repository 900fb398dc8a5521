"""Saves the last complete step of a phase, and restores a phase from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from qed.config.field_names import changed_fields, replace_fields
from qed.config.phases import Settings
from qed.errors import Interrupted, QedError
from qed.loops.ema_reference import EMAReference
from qed.loops.non_finite import NonFinitePolicy
from qed.loops.provisional import Provisional
from qed.loops.setup import Setup
from qed.rollout.collector import RolloutCollector
from qed.rollout.replay import Row
from qed.rollout.stages import Stream
from qed.training import checkpoints
from qed.training.checkpoint_writer import CheckpointWriter, Content, build_ranks, save_checkpoint
from qed.training.learner import Learner
from qed.training.value_head import OpenCritic


class Collected(Protocol):
    """A collector's state, as saved in a checkpoint."""

    @property
    def position(self) -> int:
        """The number of problems that have been taken from the stream."""
        ...

    def to_rows(self) -> list[Row]:
        """Return the rest of the state as rows of JSON."""
        ...


class Collects(Protocol):
    """Collects a phase's answers."""

    def copy(self) -> Collected:
        """Return the state after the last complete step."""
        ...


class Checkpointer:
    """Saves and restores a phase.

    If a signal stops a run within a step, the last complete step is saved. The weights are still those of that step,
    because signals are deferred from the first update on. The data position and the replay buffer have already changed,
    so both are copied whenever a step is complete.

    `first` is the step that the phase starts from, `step` the last complete one, and `signal_steps` the number of the
    phase's steps with a gradient. The phase sets `stream` and `collector` once it has them, and `before_saving`, which
    is called before a checkpoint is written.

    Args:
        setup: setup of the run.
        settings: settings of the phase.
        name: name of the phase.
        offset: number of steps that the run makes before the phase.
        learner, ema_reference, non_finite, critic: their state is saved, and restored here if the phase resumes.
    """

    def __init__(  # noqa: PLR0913 -- a checkpoint has many parts
        self,
        setup: Setup,
        settings: Settings,
        name: str,
        offset: int,
        learner: Learner,
        ema_reference: EMAReference,
        non_finite: NonFinitePolicy,
        critic: OpenCritic | None = None,
    ) -> None:
        self.setup = setup
        self.settings = settings
        self.name = name
        self.learner, self.ema_reference, self.non_finite = learner, ema_reference, non_finite
        self.critic = critic
        self.stream: Stream[Any] | None = None
        self.before_saving: Callable[[], None] = lambda: None
        self.collector: Collects | None = None
        state = setup.read_state()
        setup.best = state.get("best") if setup.best is None else setup.best
        self.first = self.step = max(offset, state["step"])
        last = offset + settings.learner.steps
        self.resumes = offset < state["step"] <= last and state.get("phase") == name
        self.position, self.signal_steps = 0, 0
        setup.signal_steps = max(setup.signal_steps, state.get("run_signal_steps", 0))
        if self.resumes:
            non_finite.in_a_row = state.get("skipped_in_a_row", 0)
            self._load_tensors(state.get("reference_moves", 0))
            learner.algorithm = replace_fields(settings.algorithm, state.get("algorithm", {}))
            self.position, self.signal_steps = state["position"], state["signal_steps"]
        # The checkpoint of the first step exists if an earlier phase or an earlier attempt of the run has saved it.
        exists = setup.parallel.run_on_first(lambda: checkpoints.has_checkpoint(setup.run.folder, self.first))
        self._saved = self.first if exists else -1
        found = Provisional.read(state)
        self.cut_off = found.pending  # evaluations that were pending when the checkpoint was saved
        self._provisional = set(found.saved)  # steps saved only because they may turn out to be the best
        self._copied: Collected | None = None

    def restore_collector(self, collector: RolloutCollector) -> None:
        """Restore a collector's state if the phase resumes, and save it with every checkpoint from now on."""
        self.collector = collector
        if self.resumes and self.setup.resumed is not None:
            collector.restore(checkpoints.read_rows(self.setup.resumed))

    def count_signal(self, has_gradient: bool) -> None:
        """Count a step that had a gradient."""
        self.signal_steps += has_gradient
        self.setup.signal_steps += has_gradient

    def complete_step(self, step: int) -> None:
        """Mark a step as complete: from now on `save` saves this step.

        Raises:
            QedError: writing a checkpoint in the background failed.
        """
        self.step = step
        self.position = self.stream.position if self.stream else 0
        self._copied = self.collector.copy() if self.collector else None
        if self.settings.run.save_async:
            self.setup.parallel.exchange(self.setup.saver.check)

    def save(
        self, scores: Mapping[int, float], best: bool = False, last: bool = False, provisional: bool = False
    ) -> None:
        """Save the last complete step unless it is saved, and delete the checkpoints that `run.keep_*` does not keep.

        With `run.save_async`, first wait for the previous checkpoint, and return once the state is copied.

        Args:
            scores: validation score of each evaluated step.
            best: whether BEST should point to this step.
            last: whether training ends here, so nothing is written in the background.
            provisional: whether the only possible reason to keep the step is its pending evaluation.

        Raises:
            QedError: the disk is full or not writable, for this checkpoint or the previous one.
        """
        run, saver, parallel = self.setup.run, self.setup.saver, self.setup.parallel
        if self._is_saved() and not best and not last:
            return
        with self.setup.timer("save"):
            parallel.exchange(saver.wait)
            if self._is_saved() and (self.setup.best == self.step or not best):
                return
            self.before_saving()
            rows = self._copied.to_rows() if self._copied else []  # waits for steps that are being sampled ahead
            if best:
                self.setup.best = self.step
            (self._provisional.add if provisional else self._provisional.discard)(self.step)
            state = self._build_state() | {"best": self.setup.best} | self._read_provisional().to_state()
            tensors = {**self.learner.state(), **self.ema_reference.state()}
            network = None
            if self.critic is not None:
                tensors, network = tensors | self.critic.state(), self.critic.network
            content = Content(tensors, state, rows, self.settings.run.save_dtype, network)
            background = saver if self.settings.run.save_async and not last else None
            then = partial(self._settle, self.step, dict(scores), best, self._read_provisional())
            target, ranks = checkpoints.name_folder(run.folder, self.step), build_ranks(parallel)
            writer = CheckpointWriter(run, self.step, self.setup.model, self.setup.tokenizer, target, content, ranks)
            save_checkpoint(writer, then, background)
            self._saved = self.step

    def _is_saved(self) -> bool:
        return self.step == self._saved and not self.setup.saver.has_failed

    def settle_evaluation(self, step: int, scores: Mapping[int, float], best: bool) -> None:
        """Point BEST to a step whose evaluation has ended if it is the best; otherwise its checkpoint may be deleted.

        Raises:
            QedError: writing a checkpoint in the background failed, or the disk is full.
        """
        run, parallel = self.setup.run, self.setup.parallel
        parallel.exchange(self.setup.saver.wait)
        if best and parallel.run_on_first(lambda: checkpoints.has_checkpoint(run.folder, step)):
            self.setup.best = step
            self._provisional.discard(step)
            parallel.run_on_first(lambda: checkpoints.set_pointer(run, "BEST", step))
        provisional, boundaries = self._read_provisional(), self.setup.boundaries
        parallel.run_on_first(lambda: provisional.prune(run, self.settings.run, scores, boundaries))

    def _read_provisional(self) -> Provisional:
        background = self.setup.background
        pending = frozenset[int]() if background is None else background.steps
        return Provisional(pending, frozenset(self._provisional))

    def _settle(self, step: int, scores: Mapping[int, float], best: bool, provisional: Provisional) -> None:
        """Point LATEST, and BEST if it is the best, to a complete checkpoint, and prune the others."""
        run = self.setup.run
        checkpoints.set_pointer(run, "LATEST", step)
        if best:
            checkpoints.set_pointer(run, "BEST", step)
        provisional.prune(run, self.settings.run, scores, self.setup.boundaries)

    def _load_tensors(self, moves: int) -> None:
        """Load the optimizer state, the critic and the reference model (after `moves` updates) from a checkpoint."""
        assert self.setup.resumed is not None
        like = {**dict(self.setup.model.named_parameters()), **self.ema_reference.describe()}
        like |= self.critic.describe() if self.critic is not None else {}
        tensors = checkpoints.read_tensors(self.setup.resumed, like)
        if self.critic is not None:
            tensors = self.critic.load(tensors)
        self.learner.load_state(self.ema_reference.load(tensors, moves))

    def _build_state(self) -> dict[str, Any]:
        """Return the part of the state that is stored as JSON."""
        return {
            "phase": self.name,
            "position": self._copied.position if self._copied else self.position,
            "signal_steps": self.signal_steps,
            "run_signal_steps": self.setup.signal_steps,
            "skipped_in_a_row": self.non_finite.in_a_row,
            "seed": self.settings.run.seed,
            "algorithm": self._list_adapted_coefficients(),
            "reference_moves": self.ema_reference.moves,
        }

    def _list_adapted_coefficients(self) -> dict[str, Any]:
        """Return the coefficients that the algorithm itself has changed since the phase began."""
        return changed_fields(self.learner.algorithm, self.settings.algorithm)


@contextmanager
def finish_saving(setup: Setup) -> Iterator[None]:
    """On leaving the context, also after an error, wait for a checkpoint that is being written in the background.

    Raises:
        QedError: the checkpoint cannot be written. If the block failed too, the checkpoint's error is only printed and
        the
            block's is raised, unless that is a stop, whose message says that the last step is saved.
    """
    try:
        yield
    except Exception as cause:
        try:
            setup.saver.wait()
        except QedError as error:
            if isinstance(cause, Interrupted):
                raise error from cause
            setup.console.say(str(error))
        raise
    setup.parallel.exchange(setup.saver.wait)
