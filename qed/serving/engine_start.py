"""Start the process of an engine before its model is known.

The process imports torch and transformers while its parent does the same. This module imports neither.
"""

from __future__ import annotations

import os
import subprocess
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

from qed.guards.parents import build_child_command


class EngineProcess(NamedTuple):
    """A process that waits for its model, and this end of the pipe to it."""

    process: subprocess.Popen[bytes]
    connection: Connection

    def close(self) -> None:
        """Kill the process if it is running."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self.connection.close()


def start_process() -> EngineProcess:
    """Start the process of an engine; it ends with the calling thread, or when the pipe is closed."""
    ours, theirs = Pipe()
    arguments = build_child_command([str(theirs.fileno()), str(os.getpid())], module="qed.serving.engine_process")
    # A separate process group, so that Ctrl-C reaches only the parent, which decides what to do about it.
    process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0)
    theirs.close()
    return EngineProcess(process, ours)
