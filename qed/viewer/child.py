"""Work that may not end, in a process of its own with a deadline: an expression or an answer can be hostile."""

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

STARTING = threading.Lock()  # the environment is the process's
CHILDREN = threading.BoundedSemaphore(4)  # processes at the same time


def call_in_child(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float, message: str) -> Any:
    """Call a function of a module in a process that is killed after a deadline.

    Args:
        function: importable by its name.
        arguments: for it; they and the result are pickled between the two processes alone.
        seconds: until the deadline.
        message: of the error if it passes.

    Raises:
        Refused: the deadline has passed, or the function has refused the arguments.
        QedError: the process has died.
    """
    if not CHILDREN.acquire(timeout=seconds):
        raise Refused(503, "Too many searches run at the same time. Wait for them to end.")
    try:
        kind, value = _wait_for_child(function, arguments, seconds, message)
    finally:
        CHILDREN.release()
    if kind == "refused":
        raise Refused(*value)
    return value


def _wait_for_child(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float, message: str) -> Any:
    context = multiprocessing.get_context("spawn")  # the server has threads, which a fork would cut off
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(os.getpid(), theirs, function, arguments), daemon=True)
    # Ctrl-C in a terminal reaches every process of it; this one ends with the server, and has nothing to say. The first
    # start of the module's tracker would let the signal through again, so it comes before.
    # Python starts without the current folder on its path: a user's `types.py` there would stand in for Python's own.
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
        raise QedError("The process that was to do this has died; it may have run out of memory.") from error
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
    except Exception as error:  # noqa: BLE001 -- Python would print its text, which a stranger may have written
        sender.send(("refused", (422, f"This could not be done: {type(error).__name__}.")))
