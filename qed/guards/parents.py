"""Processes that end with the one that has started them, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PARENT_DEATH_SIGNAL = 1  # an order to prctl


def die_with_parent(parent: int) -> Callable[[], None]:
    """What a child calls so that the kernel ends it with its parent, even when that is killed; on Linux.

    A parent of number 0 is none: the child is let go.
    """
    if sys.platform != "linux":
        return lambda: None
    control = ctypes.CDLL(None).prctl

    def bind() -> None:
        control(PARENT_DEATH_SIGNAL, signal.SIGKILL if parent else 0)
        if parent and os.getppid() != parent:  # it was killed before the kernel had been told
            os._exit(1)

    return bind
