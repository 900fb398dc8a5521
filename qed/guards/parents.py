"""Start child processes that run qed, and tie them to their parent, so that they always end with it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence

LAUNCHER = "QED_LAUNCHER"  # environment variable: the id of the process that started this one as a rank of a run
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, an option of prctl(2)


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return a function for a child to call, so that the kernel kills the child when its parent ends; Linux only.

    Args:
        parent: the parent's process id; 0 removes the tie.
    """
    if sys.platform != "linux":
        return lambda: None
    control = ctypes.CDLL(None).prctl

    def bind() -> None:
        control(PARENT_DEATH_SIGNAL, signal.SIGKILL if parent else 0)
        if parent and os.getppid() != parent:  # the parent ended before the call above
            os._exit(1)

    return bind


def die_with_launcher() -> None:
    """Tie this process to its launcher if it is a rank of a run; its own children are not tied to the launcher."""
    if launcher := os.environ.pop(LAUNCHER, ""):
        die_with_parent(int(launcher))()


def build_child_command(arguments: Sequence[str], module: str = "qed") -> list[str]:
    """Return the command of a child that runs `qed ARGUMENTS`, or another module, with this interpreter.

    The current folder is on the child's import path only if it is on ours: a user's `datasets.py` there must not shadow
    the library.
    """
    safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
    return [sys.executable, *safe, "-m", module, *arguments]


def build_code_command(code: str, *arguments: str) -> list[str]:
    """Return the command of a child that runs code with this interpreter and our import path.

    The code finds the arguments in `sys.argv[2:]`. The child starts without the current folder on its path, because a
    user's `types.py` there would shadow Python's own.
    """
    take_path = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    return [sys.executable, "-P", "-c", take_path + code, json.dumps(sys.path), *arguments]
