"""Run the commands of a compiler in parallel. They end with this process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from qed import host
from qed.guards.signals import check_signals

POINT = "compile"  # for `check_signals`
TICK = 0.01  # seconds between two checks of the commands
LONGEST_LOOK = 1.0  # the most seconds that count between two checks
LONGEST = 300  # the most characters of an error that are shown
# The first process of the group. Its input ends when this process ends, which alone holds the other end.
KEEPER = ("/bin/sh", "-c", "read line; kill -KILL 0")


class CommandError(Exception):
    """Raised when a command cannot be started or fails."""


class Patience:
    """A time limit in seconds, which does not run while this process is stopped, for example by Ctrl-Z."""

    def __init__(self, seconds: float) -> None:
        self._left, self._seen = seconds, time.monotonic()

    def is_over(self) -> bool:
        """Count the time since the last call, and return whether the limit is reached; call it often."""
        now = time.monotonic()
        self._left -= min(now - self._seen, LONGEST_LOOK)
        self._seen = now
        return self._left < 0


def run_commands(commands: Sequence[Sequence[str]], messages: Path, patience: Patience) -> None:
    """Run commands, one on each core; all of them end if one fails, the time is over or a signal arrives.

    Args:
        commands: the commands.
        messages: a file for their output; their temporary files go into its folder.
        patience: the time limit for all of them together.

    Raises:
        TimeoutError: they did not finish in time.
        CommandError: one could not be started, or failed.
        Interrupted: a stop signal arrived.
    """
    waiting, running, cores = list(commands), list[subprocess.Popen[bytes]](), host.count_usable_cores()
    with messages.open("wb") as file, _open_group() as group:
        while waiting or running:
            check_signals(POINT, progress=False)
            while waiting and len(running) < cores:
                running.append(_start(waiting.pop(0), group, file))
                group.append(running[-1])
            if code := next(filter(None, [each.poll() for each in running]), 0):
                raise CommandError(f"{commands[0][0]} failed: {_read_error(messages, code)}")
            running = [each for each in running if each.returncode is None]
            if running and patience.is_over():
                raise TimeoutError
            time.sleep(TICK)


@contextmanager
def _open_group() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list with the leader of a process group, to which processes are added; all of them end with the block.

    A compiler starts further processes, so PR_SET_PDEATHSIG would not do: it applies only to direct children.
    """
    try:
        keeper = subprocess.Popen(
            KEEPER, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
    except OSError as error:
        raise CommandError(f"{KEEPER[0]} cannot be started: {error.strerror}") from error
    with keeper:
        group = [keeper]
        try:
            yield group
        finally:
            with suppress(OSError):
                os.killpg(keeper.pid, signal.SIGKILL)
            for each in group:
                each.wait()


def _start(
    command: Sequence[str], group: list[subprocess.Popen[bytes]], messages: IO[bytes]
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TMPDIR": str(Path(messages.name).parent)}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            env=environment,
            process_group=group[0].pid,
        )
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be started: {error.strerror}") from error


def _read_error(messages: Path, code: int) -> str:
    """Return the line of a compiler's messages that names the error."""
    lines = messages.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else f"exit status {code}"
    return next((line for line in lines if "error" in line.lower()), last).strip()[:LONGEST]
