"""Work that may not terminate, in a separate process with a deadline: an expression or an answer can be hostile."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from qed import host
from qed.errors import QedError
from qed.guards.parents import die_with_parent
from qed.viewer.params import Refused

STARTING = threading.Lock()  # because the environment variables belong to the whole process
CHILDREN = threading.BoundedSemaphore(4)  # concurrent processes


def call_in_child(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float, message: str) -> Any:
    """Call a function of a module in a process that is killed after a deadline.

    Args:
        function: the function, importable by its name.
        arguments: its arguments; they and the result are pickled, only between the two processes.
        seconds: until the deadline.
        message: the error message if the deadline passes.

    Raises:
        Refused: the deadline passed, or the function refused the arguments.
        QedError: the process died.
    """
    if not CHILDREN.acquire(timeout=seconds):
        raise Refused(503, "Too many searches are running. Wait for them to end.")
    try:
        kind, value = _wait_for_child(function, arguments, seconds, message)
    finally:
        CHILDREN.release()
    if kind == "refused":
        raise Refused(*value)
    return value


def _wait_for_child(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float, message: str) -> Any:
    context = multiprocessing.get_context("spawn")  # the server has threads, which a fork would not copy
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(os.getpid(), theirs, function, arguments), daemon=True)
    # Ctrl-C in a terminal reaches all of its processes; this one ends with the server and should print nothing.
    # Starting multiprocessing's resource tracker would unblock the signal, so it is started first.
    # Python starts without the current folder on its path: a user's `types.py` there would replace Python's own.
    with STARTING, host.set_variable("PYTHONSAFEPATH", "1"):
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise Refused(400, message)
        return ours.recv()
    except EOFError as error:
        raise QedError("The process that was doing this died; it may have run out of memory.") from error
    finally:
        process.kill()
        process.join()
        ours.close()


def _work(parent: int, sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    die_with_parent(parent)()
    try:
        sender.send(("result", function(*arguments)))
    except Refused as error:
        sender.send(("refused", (error.status, str(error))))
    except QedError as error:
        sender.send(("refused", (422, str(error))))
    except Exception as error:  # noqa: BLE001 -- Python would print its text, which may be untrusted
        sender.send(("refused", (422, f"This failed: {type(error).__name__}.")))
