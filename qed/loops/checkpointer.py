"""Saves the last complete step of a phase, and restores a phase from what was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qed.config.field_names import changed_fields, replace_fields
from qed.config.phases import Settings
from qed.loops.ema_reference import EMAReference
from qed.loops.non_finite import NonFinitePolicy
from qed.loops.setup import Setup
from qed.rollout.collector import RolloutCollector
from qed.rollout.stages import Stream
from qed.training import checkpoints
from qed.training.best import keep_best
from qed.training.learner import Learner


class Checkpointer:
    """Saves and restores a phase.

    A signal may stop a run within a step, and then the last complete step is saved. The weights are still those of that
    step, because signals wait as soon as an update has moved them. The data's position and the replay pool are not,
    so both are copied whenever a step is complete.

    `first` is the step that the phase goes on from, `step` the last complete one, `signal_steps` how many of the
    phase's steps had a gradient. `stream` and `gatherer` are set by the phase, once it has them.

    Args:
        setup: of the run.
        settings: of the phase.
        name: of the phase.
        offset: the run's steps before it.
        learner, moving, tolerance: hold what is saved; restored here if the phase goes on.
    """

    def __init__(
        self,
        setup: Setup,
        settings: Settings,
        name: str,
        offset: int,
        learner: Learner,
        moving: EMAReference,
        tolerance: NonFinitePolicy,
    ) -> None:
        self.setup = setup
        self.settings = settings
        self.name = name
        self.learner, self.moving, self.tolerance = learner, moving, tolerance
        self.stream: Stream[Any] | None = None
        self.collector: RolloutCollector | None = None
        tensors, state = setup.state()
        self.first = self.step = max(offset, state["step"])
        last = offset + settings.learner.steps
        self.goes_on = offset < state["step"] <= last and state.get("phase") == name
        self.position, self.signal_steps = 0, 0
        setup.signal_steps = max(setup.signal_steps, state.get("run_signal_steps", 0))
        if self.goes_on:
            tolerance.in_a_row = state.get("skipped_in_a_row", 0)
            learner.load_state(moving.load(tensors, state.get("reference_moves", 0)))
            learner.algorithm = replace_fields(settings.algorithm, state.get("algorithm", {}))
            self.position, self.signal_steps = state["position"], state["signal_steps"]
        # A phase before this one, or the run before it was resumed, has saved the step that this one begins from.
        self._saved = self.first if checkpoints.has_checkpoint(setup.run.folder, self.first) else -1
        self._copied: RolloutCollector | None = None

    def restore_collector(self, gatherer: RolloutCollector) -> None:
        """Give a gatherer what the checkpoint holds for it, and save what it holds from now on."""
        self.collector = gatherer
        if self.goes_on and self.setup.resumed is not None:
            gatherer.restore(checkpoints.read_rows(self.setup.resumed))

    def count_signal(self, has_gradient: bool) -> None:
        """Count a step that had a gradient."""
        self.signal_steps += has_gradient
        self.setup.signal_steps += has_gradient

    def complete_step(self, step: int) -> None:
        """Note that a step is complete: from now on this is the step that is saved."""
        self.step = step
        self.position = self.stream.position if self.stream else 0
        self._copied = self.collector and self.collector.copy()

    def save(self, scores: Mapping[int, float], best: bool = False) -> None:
        """Save the last complete step unless that has been done, and delete the checkpoints that are not kept.

        Args:
            scores: how well the validation part was answered, by step.
            best: whether BEST is to name this step from now on.
        """
        run = self.setup.run
        known = checkpoints.read_pointer(run.folder, "BEST")
        if self.step == self._saved and (known == self.step or not best):
            return
        with self.setup.timer("save"):
            state = self._state() | {"best": self.step if best else known}
            rows = self._copied.rows() if self._copied else []
            tensors = {**self.learner.state(), **self.moving.state()}
            checkpoints.save_checkpoint(run, self.step, self.setup.model, self.setup.tokenizer, tensors, state, rows)
            self._saved = self.step
            if best:
                checkpoints.set_pointer(run, "BEST", self.step)
            keep_best(run, self.settings.run, scores, self.setup.boundaries)

    def _state(self) -> dict[str, Any]:
        """Return what is small and not a tensor."""
        return {
            "phase": self.name,
            "position": self.position,
            "signal_steps": self.signal_steps,
            "run_signal_steps": self.setup.signal_steps,
            "skipped_in_a_row": self.tolerance.in_a_row,
            "seed": self.settings.run.seed,
            "algorithm": self._adapted_coefficients(),
            "reference_moves": self.moving.moves,
        }

    def _adapted_coefficients(self) -> dict[str, Any]:
        """Return the coefficients that the algorithm has set itself since the phase began."""
        return changed_fields(self.learner.algorithm, self.settings.algorithm)
