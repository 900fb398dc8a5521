"""A fork server: a process that loads a target once and forks a child for every session.

A child that hangs, runs out of memory or dies affects nothing else. The caller itself never forks, because it may have
threads, an event loop or a CUDA context; it starts a fresh interpreter and passes it one end of a socket for every
session. The caller's signal handlers do not change. When the caller dies, the socket closes, and the server ends with
all of its children.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from qed import host
from qed.grading.session import LIMITS, Limits, NotLoadedError, Session
from qed.guards.parents import build_code_command

END_SECONDS = 5.0
MESSAGE = 9  # bytes of a request to the server: an operation and a pid
OPEN, END = b"o" + bytes(MESSAGE - 1), b"e"
# There is already one child per core, so each uses a single thread.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# The only variables that a sealed server gets: the code in its children could read all of its environment.
PLAIN_VARIABLES = (
    "PATH HOME TMPDIR TZ LANG LC_ALL LC_CTYPE LD_LIBRARY_PATH DYLD_LIBRARY_PATH VIRTUAL_ENV CONDA_PREFIX PYTHONHOME "
    "PYTHONPATH PYTHONUTF8 PYTHONHASHSEED PYTHONNOUSERSITE PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX"
)
BOOT = "from qed.grading.child import main; main()"


class ForkServer:
    """A fork server, started on first use.

    Args:
        target: `package.module:function`; called once with the arguments, it returns a description of itself (JSON)
            and the function that answers questions, from JSON to JSON.
        arguments: the arguments of the target, JSON.
        limits: the limits of each question.
        sealed: whether the children may not write files, start programs or open sockets; they print nothing.
        log: the file for the output of the children; None sends it to the caller's stderr.
        beside: whether the children run beside a training step, which has priority.
    """

    def __init__(
        self,
        target: str,
        arguments: Sequence[Any] = (),
        limits: Limits = LIMITS,
        sealed: bool = False,
        log: Path | None = None,
        beside: bool = True,
    ) -> None:
        self.limits = limits
        self.log = log
        self._sealed = sealed
        self._config = json.dumps([target, list(arguments), limits.memory, sealed, beside])
        self._reset()
        _servers.add(self)

    def _reset(self) -> None:
        """Return to the state before the first start. A forked copy of the caller has no server and calls this too."""
        self._lock = threading.Lock()
        # Children that share a core would reach the wall-clock limit before the CPU limit.
        self.slots = threading.BoundedSemaphore(host.count_usable_cores())
        self._control: socket.socket | None = None
        self._asked = threading.Event()  # whether the server process was ever asked for a child
        self._loading = threading.Lock()
        self._loaded: socket.socket | None = None  # the control socket of the server process that has loaded
        self._finalizer: weakref.finalize[Any, ForkServer] | None = None

    def start(self) -> None:
        """Start loading without waiting for it to finish; the first session reports a failure."""
        with self._lock, suppress(OSError):
            self._ensure_started()

    def _ensure_started(self) -> socket.socket:
        if self._control is None:
            ours, theirs = socket.socketpair()
            # The kernel kills the server when the thread that created it ends, so only the main thread requests that.
            parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
            control = [str(theirs.fileno()), str(parent)]
            command = build_code_command(BOOT, self._config, *control)
            # In a new session, so that Ctrl-C in the terminal reaches only the caller, which decides what to do.
            with self.log.open("ab") if self.log else nullcontext() as log:
                process = subprocess.Popen(
                    command,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                    env={**(_read_plain_variables() if self._sealed else os.environ), **ONE_THREAD},
                )
            theirs.close()
            self._control, self._asked = ours, threading.Event()
            self._finalizer = weakref.finalize(self, _stop_process, ours, process, os.getpid(), self._asked)
        return self._control

    def wait_until_loaded(self) -> float:
        """Wait until the target is loaded, once for each server process, and return the seconds that this took.

        The first session reports a target that cannot be loaded.
        """
        if self._loaded is not None and self._loaded is self._control:
            return 0.0
        start = time.monotonic()
        with self._loading, suppress(NotLoadedError):
            if self._loaded is None or self._loaded is not self._control:
                self.open_session().close()
                self._loaded = self._control
        return time.monotonic() - start

    def open_session(self) -> Session:
        """Fork a new child and return its session.

        Raises:
            NotLoadedError: the target cannot be loaded, or the system has no process or file descriptor left.
        """
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                origin = self._request_child(theirs)
        except OSError as error:
            raise NotLoadedError(f"the grading process could not be started: {error}") from error
        return Session(ours, self.limits, partial(self.end_child, origin=origin))

    def _request_child(self, channel: socket.socket) -> socket.socket:
        """Request a child that uses the channel; return the socket of the server process that forks it."""
        with self._lock:
            try:
                socket.send_fds(self._ensure_started(), [OPEN], [channel.fileno()])
            except OSError:  # the server process was killed: start another one
                self._close()
                socket.send_fds(self._ensure_started(), [OPEN], [channel.fileno()])
            self._asked.set()
            return self._ensure_started()

    def end_child(self, pid: int, origin: socket.socket) -> int:
        """End a child and return its exit status, negative for a signal.

        The children of an earlier server process ended with it, and their pids may be reused: for them return 0.
        """
        try:
            ours, theirs = socket.socketpair()
            with ours:
                with theirs, self._lock:
                    if self._control is not origin:
                        return 0
                    socket.send_fds(origin, [END + pid.to_bytes(MESSAGE - 1, "big")], [theirs.fileno()])
                ours.settimeout(END_SECONDS)
                return int(ours.recv(32) or b"0")
        except (OSError, ValueError):
            return 0

    def close(self) -> None:
        """End the server process and its children; the next session starts another one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._control, self._finalizer = None, None


def _read_plain_variables() -> dict[str, str]:
    """Return the variables that Python and its libraries need; others may hold tokens and passwords."""
    return {name: os.environ[name] for name in PLAIN_VARIABLES.split() if name in os.environ}


def _stop_process(control: socket.socket, process: subprocess.Popen[bytes], owner: int, asked: threading.Event) -> None:
    """Close the caller's end of the socket: a loaded server process then ends.

    A server process that was never asked for a child may still be loading for seconds, so it is killed.
    """
    control.close()
    if os.getpid() != owner:
        return
    if not asked.is_set():
        process.kill()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _reset_after_fork() -> None:
    for server in list(_servers):
        if server._control is not None:
            server._control.close()
        if server._finalizer is not None:
            server._finalizer.detach()
        server._reset()


_servers: weakref.WeakSet[ForkServer] = weakref.WeakSet()
os.register_at_fork(after_in_child=_reset_after_fork)
