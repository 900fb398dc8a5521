"""The engine's process: `python -m qed.serving.engine_process FD PARENT`; engine.py starts it.

It computes as a learner's process does. Threads and matrix products must be configured before torch is imported.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from qed import host
from qed.guards.parents import die_with_parent


def main() -> None:
    """Load the model that the pipe names, and answer requests until the pipe is closed."""
    die_with_parent(int(sys.argv[2]))()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    host.set_passive_waiting()
    host.make_products_reproducible()
    host.collect_garbage_rarely()
    from qed.serving.engine_loop import run_engine  # noqa: PLC0415 -- imports torch

    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended or closed the pipe
        run_engine(Connection(int(sys.argv[1])))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # freeing the modules of torch and transformers would take a second


if __name__ == "__main__":
    main()
