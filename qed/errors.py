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
# Parts of out-of-memory messages: of CUDA, MPS, cuBLAS, the CPU allocator on Linux and on Windows, the operating
# system, and the loader of shared libraries.
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
    """A non-finite loss, gradient, reward, log-prob or advantage; raised before the optimizer step.

    `rollouts` is the batch in which it occurred; empty if there was none.
    """

    exit_code = 4

    def __init__(self, message: str, rollouts: Sequence[Rollout] = ()) -> None:
        super().__init__(message)
        self.rollouts = tuple(rollouts)


class RewardFailed(QedError):
    """The reward failed on every answer that it was to grade."""


class NothingTrained(QedError):
    """A run in which no step had a gradient."""

    exit_code = 5


class RankLost(QedError):
    """A rank of a multi-process run died, hangs, or cannot be reached.

    The message says which rank, why it is considered lost, and how to resume. The exit code is EX_TEMPFAIL: a scheduler
    may restart the run.
    """

    exit_code = 75


class ServersGone(QedError):
    """External servers that the run needs were unreachable for too long. The exit code is EX_TEMPFAIL."""

    exit_code = 75


class Interrupted(QedError):
    """A run that a signal stopped, after its state was saved. The exit code is that of the signal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def find_exit_code(stopped: Interrupted | KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal stopped."""
    return stopped.exit_code if isinstance(stopped, Interrupted) else INTERRUPTED


def describe_unexpected(error: Exception, cause: str = "") -> str:
    """Describe an error that is not a QedError in one line: what it is, its cause, and where to find its traceback."""
    log = getattr(error, "qed_log", None)
    where = f"the traceback is in {log}" if log else "run again with --debug for the traceback"
    text = " ".join([f"{type(error).__name__}:", *str(error).split()]).removesuffix(":")
    return f"{text} ({cause}; {where})" if cause else f"{text} ({where})"


def follows_interrupt(error: Exception) -> bool:
    """Return whether Ctrl-C caused the error: a library's clean-up failed on work that was left half done."""
    return isinstance(error.__context__, KeyboardInterrupt) and not isinstance(error, QedError)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device or the host is out of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's class
        return True
    kinds = (RuntimeError, ImportError, OSError)
    return isinstance(error, kinds) and any(sign in str(error) for sign in OUT_OF_MEMORY)


def advise_space(error: BaseException) -> str:
    """Return what to do about a full disk or a file size limit; an empty string for any other error."""
    code = getattr(error, "errno", None)
    if code == errno.EFBIG or os.strerror(errno.EFBIG) in str(error):  # safetensors sets no errno
        return "Raise the limit on the size of files (ulimit -f)"
    return "Free some space" if code in (errno.ENOSPC, errno.EDQUOT) else ""


def suggest_nearest(name: str, candidates: Iterable[str]) -> str:
    """Return a sentence that suggests the candidate closest to a mistyped name, or an empty string."""
    matches = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f" Did you mean '{matches[0]}'?" if matches else ""
