"""A Python tool: code between <python> tags is run in a sealed process, and its output is told to the policy."""

from __future__ import annotations

import math
import re
import textwrap
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
from qed.grading.session import FailedError, Limits, NotLoadedError, Session, TimedOutError
from qed.guards.signals import check_signals
from qed.guards.watchdog import beat
from qed.types import Problem

TEXT = (
    "You may run Python: write a program between <python> and </python>, and what it prints is told to you between "
    "<output> and </output>. Each program starts anew; it has no files and no network."
)
SAID = 1000  # characters of what is said besides a program's output
UNREADABLE = "The program was ended: its output cannot be read."
FENCED = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
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
    remember: bool = False
    """Whether a program finds the names of the programs before it in the answer, which are run once more for it."""
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
        programs = [self._read_programs(state) for state in states]
        count = host.count_usable_cores() // host.count_local_ranks()
        threads = ThreadPoolExecutor(max(1, count))
        try:
            futures = [threads.submit(self.run, *codes) if codes else None for codes in programs]
            running = {future for future in futures if future is not None}
            while wait(running, POLL_SECONDS).not_done:
                check_signals("rollout", progress=False)
            return [None if future is None else Reply(wrap_result("output", future.result())) for future in futures]
        except BaseException:  # an interrupt must not wait for a program
            stop_programs()
            raise
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def step(self, state: State) -> Reply | None:
        """Run the program with which a turn ends; a turn without one ends the answer."""
        return self.reply([state])[0]

    def _read_programs(self, state: State) -> tuple[str, ...]:
        """Return the program with which the newest turn ends, after those to be run before it; () if there is none.

        Behind an end token none is run: its output could not be told.
        """
        codes = [find_call(turn, "python") for turn in state.turns]
        if state.ended or not codes or codes[-1] is None:
            return ()
        return tuple(clean_program(code) for code in codes[0 if self.remember else -1 :] if code is not None)

    def run(self, *codes: str) -> str:
        """Run programs in a child of their own, and return what the last one printed, or why it was ended."""
        beat()
        session = self._open_session()
        try:
            # A program can forge what its child sends.
            answer = session.ask(codes, scale=len(codes))
            return answer[: self.max_characters + SAID] if isinstance(answer, str) else UNREADABLE
        except TimedOutError as error:
            return f"The program was ended: it took {error}."
        except FailedError as error:
            return f"The program was ended: {str(error)[:SAID]}."
        finally:
            session.close()

    def _open_session(self) -> Session:
        try:
            return _open_server(self).open_session()
        except NotLoadedError:  # the server may have been killed, and is started again
            pass
        try:
            return _open_server(self).open_session()
        except NotLoadedError as error:
            raise UsageError(f"The environment python cannot run programs: {error}") from error


def clean_program(code: str) -> str:
    """Return a program without the indent of all its lines, and without a code fence of Markdown around it."""
    text = textwrap.dedent(code).strip()
    fenced = FENCED.fullmatch(text)
    return fenced[1] if fenced else text


_servers: dict[tuple[Limits, int], ForkServer] = {}
_lock = threading.Lock()


def _open_server(environment: Python) -> ForkServer:
    """Return the server of an environment's children, which is started once for equal limits."""
    with _lock:
        sent = (1 << 20) + ESCAPED * environment.max_characters
        limits = Limits(environment.seconds, 6 * environment.seconds, environment.memory_mb << 20, sent)
        key = limits, environment.max_characters
        if key not in _servers:
            target = "qed.environments.python_child:load"
            _servers[key] = ForkServer(target, [environment.max_characters], limits, sealed=True)
        return _servers[key]


def stop_programs() -> None:
    """End all programs and the processes that wait for one; the next program starts them again."""
    with _lock:
        while _servers:
            _servers.popitem()[1].close()


environment = Python()
