"""What can go wrong through no fault of the code, each with the exit code that a caller may rely on.

A message says what, where, why and what to do; the command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qed.types import Rollout


class QedError(Exception):
    """The run failed for a reason that the message names."""

    exit_code = 1


class UsageError(QedError):
    """A command line or a configuration that cannot be meant."""

    exit_code = 2


class DataError(QedError):
    """Data that cannot be used, named by file and row."""

    exit_code = 3


class ModelError(QedError):
    """A model or tokenizer that cannot be used."""

    exit_code = 3


class Diverged(QedError):
    """A loss, gradient, reward, log-prob or advantage that is not finite: stopped before the optimizer step.

    `rollouts` are the batch in which it was met, as far as there was one.
    """

    exit_code = 4

    def __init__(self, message: str, rollouts: Sequence[Rollout] = ()) -> None:
        super().__init__(message)
        self.rollouts = tuple(rollouts)


class NothingTrained(QedError):
    """A run in which no step ever had a gradient."""

    exit_code = 5


class Interrupted(QedError):
    """A signal ended the run; what was learned is saved. The exit code is that of the signal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """A sentence proposing the known name nearest to a mistyped one, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""
