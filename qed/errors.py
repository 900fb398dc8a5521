"""Errors that are not bugs of qed, each with its own exit code.

A message says what failed, where, why, and what to do. The command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qed.types import Rollout

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ends
# What says that memory has run out: CUDA, MPS, cuBLAS, the CPU's allocator on Linux and on Windows, the system, and the
# loader of libraries.
OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "STATUS_ALLOC_FAILED",
    os.strerror(errno.ENOMEM),
    "failed to map segment",
)


class QedError(Exception):
    """A run that failed for the reason in the message; the base class of all errors of qed."""

    exit_code = 1


class UsageError(QedError):
    """An invalid command line or configuration."""

    exit_code = 2


class DataError(QedError):
    """Invalid data; the message names the file and the row."""

    exit_code = 3


class ModelError(QedError):
    """A model or tokenizer that cannot be used."""

    exit_code = 3


class Diverged(QedError):
    """A loss, gradient, reward, log-prob or advantage that is not finite; raised before the optimizer step.

    `rollouts` is the batch in which it occurred, or empty if there was none.
    """

    exit_code = 4

    def __init__(self, message: str, rollouts: Sequence[Rollout] = ()) -> None:
        super().__init__(message)
        self.rollouts = tuple(rollouts)


class NothingTrained(QedError):
    """A run in which no step had a gradient."""

    exit_code = 5


class RankLost(QedError):
    """A run of several processes in which one of them died, hangs, or cannot be reached.

    The message names the rank, why it is taken for lost, and how to resume. The exit code is EX_TEMPFAIL: a scheduler
    may start the run again.
    """

    exit_code = 75


class ServersGone(QedError):
    """Servers that the run needs and does not start itself are gone for too long. The exit code is EX_TEMPFAIL."""

    exit_code = 75


class Interrupted(QedError):
    """A run that a signal ended, after its state was saved. The exit code is that of the signal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def follows_interrupt(error: Exception) -> bool:
    """Return whether Ctrl-C is the cause: the clean-up of a library failed on what it had left half done."""
    return isinstance(error.__context__, KeyboardInterrupt) and not isinstance(error, QedError)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory of the device or of the host has run out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return True
    kinds = (RuntimeError, ImportError, OSError)
    return isinstance(error, kinds) and any(sign in str(error) for sign in OUT_OF_MEMORY)


def advise_space(error: BaseException) -> str:
    """Return what to do about a full disk or a limit on the size of files; an empty string for another error."""
    code = getattr(error, "errno", None)
    if code == errno.EFBIG or os.strerror(errno.EFBIG) in str(error):  # that of safetensors has no code
        return "Raise the limit on the size of files (ulimit -f)"
    return "Free some space" if code in (errno.ENOSPC, errno.EDQUOT) else ""


def suggest_nearest(name: str, candidates: Iterable[str]) -> str:
    """Return a sentence that suggests the candidate closest to a mistyped name, or an empty string."""
    matches = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f" Did you mean '{matches[0]}'?" if matches else ""
