"""A clean process that loads something once and forks a child for every session: a child that hangs, grows or dies
takes nothing with it.

The caller itself never forks, because it may have threads, an event loop or a CUDA context; it starts a fresh
interpreter and hands it one end of a socket for every session. No signal of the caller is touched. When the caller
dies, the socket closes, and the clean process ends with all of its children.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from qed import host
from qed.grading.session import LIMITS, Limits, NotLoadedError, Session

END_SECONDS = 5.0
MESSAGE = 9  # bytes of a request to the clean process: what to do, and a process number
OPEN, END = b"o" + bytes(MESSAGE - 1), b"e"
# The child finds the same packages as its parent, whatever way the parent found them.
# There is one for each core already, so none of them needs a second thread.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from qed.grading.child import main; main()"


class ForkServer:
    """A clean process, started when it is first needed.

    Args:
        target: `package.module:function`; called once with the arguments, it returns a description of itself (JSON)
            and the function that answers questions, JSON to JSON.
        arguments: of the target, JSON.
        limits: of every question.
        sealed: the children neither write files, start programs nor open sockets, and are silent.
        log: the file that takes what the children print; else that goes where the caller's errors go.
    """

    def __init__(
        self,
        target: str,
        arguments: Sequence[Any] = (),
        limits: Limits = LIMITS,
        sealed: bool = False,
        log: Path | None = None,
    ) -> None:
        self.limits = limits
        self.log = log
        self._orders = json.dumps([target, list(arguments), limits.memory, sealed])
        self._forget()
        _living.add(self)

    def _forget(self) -> None:
        """As if it had never been started: what a forked copy of the caller does, whose process it is not."""
        self._lock = threading.Lock()
        # A child that shares its core with another meets the limit by the clock before that of processor time.
        self.places = threading.BoundedSemaphore(host.count_usable_cores())
        self._control: socket.socket | None = None
        self._end: weakref.finalize[Any, ForkServer] | None = None

    def start(self) -> None:
        """Begin to load, without waiting for it."""
        with self._lock:
            self._ensure_started()

    def _ensure_started(self) -> socket.socket:
        if self._control is None:
            ours, theirs = socket.socketpair()
            # The kernel ends a child with the thread that made it, so only the main thread may ask for that.
            parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
            control = [str(theirs.fileno()), str(parent)]
            command = [sys.executable, "-c", BOOT, json.dumps(sys.path), self._orders, *control]
            # A session of its own: Ctrl-C in the terminal is for the caller, who then decides.
            with self.log.open("ab") if self.log else nullcontext() as log:
                process = subprocess.Popen(
                    command,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, **ONE_THREAD},
                )
            theirs.close()
            self._control = ours
            self._end = weakref.finalize(self, _stop_process, ours, process, os.getpid())
        return self._control

    def open_session(self) -> Session:
        """A new child.

        Raises:
            NotLoadedError: the target cannot be loaded, or the system gives no process or file to do it with.
        """
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                origin = self._open(theirs)
        except OSError as error:
            raise NotLoadedError(f"the process that grades could not be started: {error}") from error
        return Session(self, ours, origin)

    def _open(self, channel: socket.socket) -> socket.socket:
        """Ask for a child at the other end of a channel; the socket of the clean process that was asked."""
        with self._lock:
            try:
                socket.send_fds(self._ensure_started(), [OPEN], [channel.fileno()])
            except OSError:  # the clean process itself was killed: another one takes its place
                self._close()
                socket.send_fds(self._ensure_started(), [OPEN], [channel.fileno()])
            return self._ensure_started()

    def end_child(self, number: int, origin: socket.socket) -> int:
        """End a child by its process number; its exit status, negative for a signal.

        The children of a clean process that is no more have ended with it, and their numbers may be those of others.
        """
        try:
            ours, theirs = socket.socketpair()
            with ours:
                with theirs, self._lock:
                    if self._control is not origin:
                        return 0
                    socket.send_fds(origin, [END + number.to_bytes(MESSAGE - 1, "big")], [theirs.fileno()])
                ours.settimeout(END_SECONDS)
                return int(ours.recv(32) or b"0")
        except (OSError, ValueError):
            return 0

    def close(self) -> None:
        """End the clean process and its children; the next session starts another one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._end is not None:
            self._end()
        self._control, self._end = None, None


def _stop_process(control: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    """Close our end, at which the clean process ends by itself."""
    control.close()
    if os.getpid() != owner:
        return
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _forget_in_child() -> None:
    for zygote in list(_living):
        if zygote._control is not None:
            zygote._control.close()
        if zygote._end is not None:
            zygote._end.detach()
        zygote._forget()


_living: weakref.WeakSet[ForkServer] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_in_child)
