"""Run a server's command, and end it with its child processes when the requesting process ends.

This is a small separate process, the parent of the server. The kernel's parent-death signal alone does not suffice: it
reaches one process but not its group, and it is already sent when the thread that started the process ends.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from qed.guards.parents import die_with_parent

LOOK = 0.5  # seconds between two checks that the parent is alive
ROOT = Path(__file__).parents[2]
CODE = "import sys; sys.path.insert(0, sys.argv[1]); from qed.serving.supervisor import main; main(sys.argv[2:])"


def build_command(parent: int, grace: float, command: list[str]) -> list[str]:
    """Return the command that runs another command under supervision.

    The first line of its stdout is the process id of the server, which leads a process group; the server writes both
    stdout and stderr to the supervisor's stderr. It ends with the server's exit code. SIGTERM ends the server.

    Args:
        parent: the process with which the server must end.
        grace: seconds between SIGTERM and SIGKILL for the server.
        command: the command of the server.
    """
    # -I keeps the current folder and PYTHONPATH, which is for the server, off the supervisor's import path.
    return [sys.executable, "-I", "-c", CODE, str(ROOT), str(parent), str(grace), *command]


def main(arguments: list[str]) -> None:
    """Supervise a command; the arguments are the parent's process id, the grace in seconds, and the command."""
    parent, grace, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    asked: list[int] = []
    events, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, frame: asked.append(received))
    signal.signal(signal.SIGCHLD, lambda received, frame: None)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, preexec_fn=die_with_parent(os.getpid())
        )
    except OSError as error:
        sys.exit(f"{command[0]} does not start: {error.strerror or error}")
    with suppress(OSError):
        os.write(1, f"{process.pid}\n".encode())
    os.close(1)
    while process.poll() is None and not asked and os.getppid() == parent:
        _wait(events, LOOK)
    _end(process, grace, events)
    code = process.returncode
    sys.exit(code if code >= 0 else 128 - code)


def _end(process: subprocess.Popen[bytes], grace: float, events: int) -> None:
    deadline = time.monotonic() + grace
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
    while process.poll() is None and time.monotonic() < deadline:
        _wait(events, min(LOOK, grace))
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _wait(events: int, seconds: float) -> None:
    """Wait for a signal, such as SIGCHLD when the server ends."""
    if select.select([events], [], [], seconds)[0]:
        os.read(events, 1024)


def _signal_group(group: int, number: int) -> None:
    with suppress(OSError):  # no process is left in it
        os.killpg(group, number)
