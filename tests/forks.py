"""Copies of the test's process that are made by os.fork."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

AWAKE = "RD"  # states of a thread of Linux that runs, or waits for a core or the kernel
PATIENCE = 1.0  # seconds for a thread that goes on computing


def wait_for_other_threads() -> None:
    """Wait until no other thread of this process computes or ends.

    A thread that ends holds all locks of MKL's memory for a moment. A copy of the process that is made meanwhile has no
    such thread, and its first matrix product would wait for them for ever.
    """
    end = time.monotonic() + PATIENCE
    while _is_another_awake() and time.monotonic() < end:
        time.sleep(0.001)


def _is_another_awake() -> bool:
    own = str(threading.get_native_id())
    for file in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # it has ended
            if file.parent.name != own and file.read_text("utf-8", "replace").rpartition(")")[2].split()[0] in AWAKE:
                return True
    return False
