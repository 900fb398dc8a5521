"""Run another program's server in the foreground: started, watched, and ended with this process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

from qed.guards.signals import EXIT_CODES
from qed.serving.processes import ServerProcess, ServerSpec

TICK = 0.2  # seconds between two checks for a signal


def run_in_foreground(spec: ServerSpec, say: Callable[[str], None], on_ready: Callable[[ServerProcess], None]) -> int:
    """Run a server until a signal arrives, and return the exit code; a second signal ends this process at once.

    Args:
        spec: how to start the server.
        say: prints a line for people.
        on_ready: called once the server answers.

    Raises:
        ServerError: it does not start or restart.
    """
    server = ServerProcess(spec)
    received: list[int] = []
    errors: list[BaseException] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            os._exit(EXIT_CODES[signal.Signals(number)])  # the server ends with this process
        received.append(number)

    def work() -> None:
        try:
            server.start()
            # Clients know its address, so it must restart at the same one.
            server.spec = replace(spec, port=int(server.url.rpartition(":")[2]))
            on_ready(server)
            server.watch(say)
        except BaseException as error:  # noqa: BLE001 -- raised below, in the main thread
            errors.append(error)

    # Under nohup SIGHUP is ignored, and stays ignored.
    numbers = [one for one in EXIT_CODES if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
    previous = {number: signal.signal(number, note) for number in numbers}
    worker = threading.Thread(target=work, daemon=True)
    try:
        worker.start()
        while worker.is_alive() and not received:
            worker.join(TICK)
    finally:
        server.stop()
        worker.join()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if errors and not received:
        raise errors[0]
    return EXIT_CODES[signal.Signals(received[0])] if received else 0
