"""Start the trackers of a training run, each in a separate process, and end them with the run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from qed.config import plugins
from qed.errors import QedError, UsageError
from qed.guards.parents import build_code_command
from qed.runs.run import Run
from qed.trackers.process import LAST_SECONDS, find_home, read_state

BOOT = "from qed.trackers.process import main; main(sys.argv[2])"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
QUIET_SECONDS = 2.0  # of waiting at the end without a message


class Speaker(Protocol):
    """Prints a line, as a console does."""

    def say(self, text: str = "") -> None:
        """Print a line."""


def require_installed(trackers: Sequence[str]) -> None:
    """Raise UsageError if the library of a tracker is missing."""
    for name in trackers:
        spec = None if plugins.is_users_own(name) else importlib.util.find_spec(name)
        # Without an origin it is only a folder of that name, such as W&B leaves in the working directory.
        if not plugins.is_users_own(name) and (spec is None or spec.origin is None):
            raise UsageError(
                f"The tracker {name} needs the package {name}, which is not installed: pip install 'qed[{name}]', or "
                f"pip install {name}."
            )


class RunTrackers:
    """The trackers of a run; as a context manager it ends them, and waits at most LAST_SECONDS for all of them.

    Enter it before the run that it follows: the last lines of a run are written when the run's context exits.

    Args:
        names: the names of the trackers.
        console: prints messages to the user.
    """

    def __init__(self, names: Sequence[str], console: Speaker) -> None:
        self.names = names
        self.console = console
        self.run: Run | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, run: Run) -> None:
        """Start the trackers; call it once the run's folder has its settings and no steps that will be repeated."""
        self.run = run
        nested = run.home.resolve() != run.folder.resolve()  # a run of a sweep, or a control
        name = f"{run.home.resolve().name}/{run.folder.name}" if nested else run.folder.resolve().name
        for tracker in self.names:
            request = {"folder": str(run.folder.resolve()), "tracker": tracker, "given": {"name": name}}
            try:
                # In a separate session, so that Ctrl-C in the terminal reaches only training, which then decides.
                self._processes[tracker] = subprocess.Popen(
                    build_code_command(BOOT, json.dumps(request)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    env={**os.environ, **ONE_THREAD},
                )
            except OSError as error:
                self._report_failure(tracker, f"its process could not be started: {error}")

    def check(self) -> None:
        """Report trackers that have ended before the run. It takes microseconds and never waits."""
        for tracker, process in list(self._processes.items()):
            if process.poll() is not None:
                self._processes.pop(tracker)
                self._close_stdin(process)
                self._report_failure(tracker, _describe_code(process.returncode))

    def __enter__(self) -> RunTrackers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            self._close_stdin(process)
        deadline = time.monotonic() + LAST_SECONDS
        try:
            self._wait(time.monotonic() + QUIET_SECONDS)
            if waiting := [name for name, process in self._processes.items() if process.poll() is None]:
                self.console.say(f"Waiting at most {LAST_SECONDS:.0f} s for {', '.join(waiting)} to send the rest.")
            self._wait(deadline)
        except KeyboardInterrupt:
            pass  # the run is saved, and the message about its end matters more
        finally:
            for tracker, process in self._processes.items():
                code = process.poll()
                process.kill()
                process.wait()
                self._report_end(tracker, code)

    def _wait(self, deadline: float) -> None:
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def _close_stdin(self, process: subprocess.Popen[bytes]) -> None:
        """Signal to a tracker that the run is over."""
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()

    def _report_end(self, tracker: str, code: int | None) -> None:
        """Print where a tracker shows the run, or why it does not; `code` is None if it was still running."""
        assert self.run is not None
        state = self._read_state(tracker)
        if code == 0 and state is not None and state.complete:
            self.console.say(f"{tracker}: {state.where}")
        elif code is not None:
            self._report_failure(tracker, _describe_code(code))
        else:
            self._report_failure(tracker, "it had not sent everything by the deadline")

    def _report_failure(self, tracker: str, otherwise: str) -> None:
        """Print why a tracker ended, its last step, and how to send what is missing."""
        assert self.run is not None
        state = self._read_state(tracker)
        reason = (state and state.error) or otherwise
        reached = f"its last step is {state.step}" if state is not None and state.step >= 0 else "it has no step"
        self.console.say(
            f"Warning: the tracker {tracker} does not show the whole run: {reason}. As far as is known, {reached}. "
            f"Training is not affected; afterwards, `qed track {self.run.folder} --to {tracker}` sends everything."
        )
        with suppress(QedError, OSError):
            self.run.event("tracker_failed", tracker=tracker, reason=reason)

    def _read_state(self, tracker: str) -> Any:
        assert self.run is not None
        try:
            return read_state(find_home(self.run.folder, tracker))
        except QedError:
            return None


def _describe_code(code: int) -> str:
    return f"it ended with code {code}"
