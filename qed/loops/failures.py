"""Handles errors that end a phase: saves the last complete step if the weights are still those of that step."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event

from torch.optim import Optimizer

from qed.errors import QedError
from qed.loops.checkpointer import Checkpointer
from qed.loops.evaluator import Evaluator
from qed.loops.setup import Setup


class Failures:
    """Tracks whether the weights are those of the last complete step, and saves that step after an error.

    Args:
        setup: setup of the run.
        checkpointer: saves the phase.
        evaluator: has the validation scores.
        optimizers: optimizers of the policy and of a critic. A failure before the first of them begins its step, such
        as
            a backward pass that runs out of memory, has not changed any weights.
    """

    def __init__(
        self, setup: Setup, checkpointer: Checkpointer, evaluator: Evaluator, optimizers: Sequence[Optimizer]
    ) -> None:
        self.setup, self.checkpointer, self.evaluator = setup, checkpointer, evaluator
        self._updating = Event()  # set from the first weight change until the step is complete
        self._held: QedError | None = None
        # The hooks refer only to the event: a reference cycle would keep the optimizers' memory after the phase.
        begin = partial(_begin_update, self._updating)
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(begin)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold an error of the block until the step is complete, so that the finished update is not lost."""
        try:
            yield
        except QedError as error:
            self._held = error

    def settle(self) -> None:
        """Mark the step as complete, and raise the held error if there is one.

        Raises:
            QedError: the held error.
        """
        self._updating.clear()
        if self._held is not None:
            raise self._held

    def save(self) -> None:
        """Save the last complete step after an error, and print how to resume.

        Save nothing if the weights are no longer those of that step, if it is the step where this attempt began, or if
        there are several ranks, because the others would wait for the one that failed.
        """
        saver, is_between = self.checkpointer, self._updating.is_set() or self.setup.stop.deferred
        if is_between or self.setup.parallel.world > 1 or saver.step == saver.first:
            return
        try:
            saver.save(self.evaluator.scores, last=True)
        except Exception as error:  # noqa: BLE001 -- the error that ended the run is raised instead
            self.setup.console.say(f"Step {saver.step}, the last complete one, could not be saved: {error}")
            return
        self.setup.console.say(
            f"An error ends the run; step {saver.step}, the last complete one, is saved. Resume with the same "
            f"command and --resume --out {shlex.quote(str(self.setup.run.home))}."
        )


def _begin_update(updating: Event, *_: object) -> None:
    updating.set()
