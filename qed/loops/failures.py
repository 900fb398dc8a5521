"""What a phase does when an error ends it: the last complete step is saved, if the weights are still those of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from qed.errors import QedError
from qed.loops.checkpointer import Checkpointer
from qed.loops.evaluator import Evaluator
from qed.loops.setup import Setup


class Failures:
    """Knows whether the weights are those of the last complete step, and saves it after an error.

    `is_updating` is True from the first update of a step until the step is complete.
    """

    def __init__(self, setup: Setup, checkpointer: Checkpointer, evaluator: Evaluator) -> None:
        self.setup, self.checkpointer, self.evaluator = setup, checkpointer, evaluator
        self.is_updating = False
        self._held: QedError | None = None

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
        self.is_updating = False
        if self._held is not None:
            raise self._held

    def save(self) -> None:
        """Save the last complete step after an error, and say how to resume.

        Nothing is saved if the weights are no longer those of that step, if it is where this attempt began, or of
        several ranks, which would wait for the one that failed.
        """
        saver, is_between = self.checkpointer, self.is_updating or self.setup.stop.deferred
        if is_between or self.setup.parallel.world > 1 or saver.step == saver.first:
            return
        with suppress(Exception):  # what has ended the run is raised, and not that its state cannot be saved
            saver.save(self.evaluator.scores, last=True)
            self.setup.console.say(
                f"An error ends the run; step {saver.step}, the last complete one, is saved. Continue with the same "
                f"command and --resume --out {shlex.quote(str(self.setup.run.home))}."
            )
