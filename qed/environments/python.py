"""A Python tool: code between <python> tags is run in a sealed process, and its output is told to the policy."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import ClassVar

from qed import host
from qed.environments.base import Environment, Message, Reply, State
from qed.environments.tags import find_call, make_tags, wrap_result
from qed.errors import UsageError
from qed.grading.fork_server import ForkServer
from qed.grading.judge import POLL_SECONDS
from qed.grading.session import FailedError, Limits, NotLoadedError, TimedOutError
from qed.guards.signals import check_signals
from qed.types import Problem

TEXT = (
    "You may run Python: write a program between <python> and </python>, and what it prints is told to you between "
    "<output> and </output>. Each program starts anew; it has no files and no network."
)
SAID = 1000  # characters of what is said besides a program's output
UNREADABLE = "The program was ended: its output cannot be read."
ESCAPED = 12  # bytes of a character in JSON, at most


@dataclass(frozen=True)
class Python(Environment):
    """Runs the code of a turn in a process of its own, without files, network, processes or environment variables."""

    max_turns: int = 5
    """The most turns of the policy in an answer; each but the last may call the tool once."""
    seconds: float = 5.0
    """Processor time of a program; by the clock it has six times as much."""
    memory_mb: int = 512
    """Memory of a program, in MiB beyond Python's own."""
    max_characters: int = 2000
    """The longest output that is told; the rest is cut off."""
    instruction: str = TEXT
    """What the policy is told before the question; empty for nothing."""

    stop: ClassVar[tuple[str, ...]] = ("</python>",)
    reply_tags: ClassVar[tuple[str, str] | None] = make_tags("output")

    def __post_init__(self) -> None:
        """Refuse limits that leave nothing."""
        super().__post_init__()
        if not 0 < self.seconds < math.inf or self.memory_mb <= 0 or self.max_characters <= 0:
            raise UsageError("The options seconds, memory_mb and max_characters of python must be numbers above 0.")

    def start(self, problem: Problem) -> Sequence[Message]:
        """Explain the tool, then ask the question."""
        explained = [{"role": "system", "content": self.instruction}] if self.instruction else []
        return [*explained, *super().start(problem)]

    def reply(self, states: Sequence[State]) -> list[Reply | None]:
        """Run the programs of several answers at the same time."""
        programs = [find_call(state.turns[-1], "python") for state in states]
        count = host.count_usable_cores() // host.count_local_ranks()
        threads = ThreadPoolExecutor(max(1, count))
        try:
            futures = [threads.submit(self.run, code) if code is not None else None for code in programs]
            running = {future for future in futures if future is not None}
            while wait(running, POLL_SECONDS).not_done:
                check_signals("rollout", progress=False)
            return [None if future is None else Reply(wrap_result("output", future.result())) for future in futures]
        except BaseException:  # an interrupt must not wait for a program
            stop_programs()
            raise
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def run(self, code: str) -> str:
        """Run a program in a child of its own, and return what it printed, or why it was ended."""
        try:
            session = _open_server(self).open_session()
        except NotLoadedError as error:
            raise UsageError(f"The environment python cannot run programs: {error}") from error
        try:
            # A program can forge what its child sends.
            answer = session.ask(code)
            return answer[: self.max_characters + SAID] if isinstance(answer, str) else UNREADABLE
        except TimedOutError as error:
            return f"The program was ended: it took {error}."
        except FailedError as error:
            return f"The program was ended: {str(error)[:SAID]}."
        finally:
            session.close()


_servers: dict[Python, ForkServer] = {}
_lock = threading.Lock()


def _open_server(environment: Python) -> ForkServer:
    """Return the server of an environment's children, which is started once for equal limits."""
    with _lock:
        if environment not in _servers:
            sent = (1 << 20) + ESCAPED * environment.max_characters
            limits = Limits(environment.seconds, 6 * environment.seconds, environment.memory_mb << 20, sent)
            target = "qed.environments.python_child:load"
            _servers[environment] = ForkServer(target, [environment.max_characters], limits, sealed=True)
        return _servers[environment]


def stop_programs() -> None:
    """End all programs and the processes that wait for one; the next program starts them again."""
    with _lock:
        while _servers:
            _servers.popitem()[1].close()


environment = Python()
