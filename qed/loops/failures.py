"""What a phase does when an error ends it: the last complete step is saved, if the weights are still those of it."""

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
    """Knows whether the weights are those of the last complete step, and saves it after an error.

    Args:
        setup: of the run.
        checkpointer: saves the phase.
        evaluator: has the scores of its evaluations.
        optimizers: change the weights of the policy and of a critic. What fails before the first of them begins, such
            as a backward pass for which memory does not suffice, has changed nothing.
    """

    def __init__(
        self, setup: Setup, checkpointer: Checkpointer, evaluator: Evaluator, optimizers: Sequence[Optimizer]
    ) -> None:
        self.setup, self.checkpointer, self.evaluator = setup, checkpointer, evaluator
        self._updating = Event()  # set from the first change of a weight until the step is complete
        self._held: QedError | None = None
        # The optimizers hold the event alone: a cycle would keep their memory when the phase has ended.
        begin = partial(_begin_update, self._updating)
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(begin)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold an error of the block until the step is complete: its update is done, and is not to be lost."""
        try:
            yield
        except QedError as error:
            self._held = error

    def settle(self) -> None:
        """Take note that the step is complete, and raise the error that was held, if there is one.

        Raises:
            QedError: that error.
        """
        self._updating.clear()
        if self._held is not None:
            raise self._held

    def save(self) -> None:
        """Save the last complete step after an error, and say how to resume.

        Nothing is saved if the weights are no longer those of that step, if it is where this attempt began, or of
        several ranks, which would wait for the one that failed.
        """
        saver, is_between = self.checkpointer, self._updating.is_set() or self.setup.stop.deferred
        if is_between or self.setup.parallel.world > 1 or saver.step == saver.first:
            return
        try:
            saver.save(self.evaluator.scores, last=True)
        except Exception as error:  # noqa: BLE001 -- what has ended the run is raised
            self.setup.console.say(f"Step {saver.step}, the last complete one, could not be saved: {error}")
            return
        self.setup.console.say(
            f"An error ends the run; step {saver.step}, the last complete one, is saved. Continue with the same "
            f"command and --resume --out {shlex.quote(str(self.setup.run.home))}."
        )


def _begin_update(updating: Event, *_: object) -> None:
    updating.set()
