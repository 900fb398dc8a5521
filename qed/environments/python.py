"""A Python tool: runs code between <python> tags in a sandboxed process and tells the policy its output."""

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
SAID = 1000  # maximum number of characters in addition to a program's output
UNREADABLE = "The program was ended: its output cannot be read."
FENCED = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
ESCAPED = 12  # maximum number of bytes of a character in JSON


@dataclass(frozen=True)
class Python(Environment):
    """Runs a turn's code in a separate process without files, network, subprocesses or environment variables."""

    max_turns: int = 5
    """The maximum number of policy turns in an answer; each but the last may call the tool once."""
    seconds: float = 5.0
    """CPU time limit of a program in seconds; its wall-clock limit is six times as much."""
    memory_mb: int = 512
    """Memory limit of a program, in MiB beyond Python's own."""
    max_characters: int = 2000
    """Maximum number of output characters that the policy is shown; the rest is cut off."""
    remember: bool = False
    """Whether a program sees the names defined by the answer's earlier programs, which are rerun for it."""
    instruction: str = TEXT
    """The system message before the question; empty for none."""

    stop: ClassVar[tuple[str, ...]] = ("</python>",)
    reply_tags: ClassVar[tuple[str, str] | None] = make_tags("output")

    def __post_init__(self) -> None:
        """Reject limits that are not above 0."""
        super().__post_init__()
        if not 0 < self.seconds < math.inf or self.memory_mb <= 0 or self.max_characters <= 0:
            raise UsageError("The options seconds, memory_mb and max_characters of python must be numbers above 0.")

    def start(self, problem: Problem) -> Sequence[Message]:
        """Explain the tool, then ask the question."""
        explained = [{"role": "system", "content": self.instruction}] if self.instruction else []
        return [*explained, *super().start(problem)]

    def reply(self, states: Sequence[State]) -> list[Reply | None]:
        """Run the programs of several answers concurrently."""
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
        """Run the program at the end of a turn; a turn without one ends the answer."""
        return self.reply([state])[0]

    def _read_programs(self, state: State) -> tuple[str, ...]:
        """Return the program at the end of the newest turn, preceded by those to rerun before it; () if there is none.

        No program runs after an end token, because its output could not be shown.
        """
        codes = [find_call(turn, "python") for turn in state.turns]
        if state.ended or not codes or codes[-1] is None:
            return ()
        return tuple(clean_program(code) for code in codes[0 if self.remember else -1 :] if code is not None)

    def run(self, *codes: str) -> str:
        """Run programs in a separate child process, and return the output of the last one, or why it was ended."""
        beat()
        session = self._open_session()
        try:
            # A program can forge its child's messages.
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
        except NotLoadedError:  # the server may have been killed; start it again
            pass
        try:
            return _open_server(self).open_session()
        except NotLoadedError as error:
            raise UsageError(f"The environment python cannot run programs: {error}") from error


def clean_program(code: str) -> str:
    """Return a program without common indentation and without a Markdown code fence around it."""
    text = textwrap.dedent(code).strip()
    fenced = FENCED.fullmatch(text)
    return fenced[1] if fenced else text


_servers: dict[tuple[Limits, int], ForkServer] = {}
_lock = threading.Lock()


def _open_server(environment: Python) -> ForkServer:
    """Return the fork server for an environment's programs; equal limits share one."""
    with _lock:
        sent = (1 << 20) + ESCAPED * environment.max_characters
        limits = Limits(environment.seconds, 6 * environment.seconds, environment.memory_mb << 20, sent)
        key = limits, environment.max_characters
        if key not in _servers:
            target = "qed.environments.python_child:load"
            _servers[key] = ForkServer(target, [environment.max_characters], limits, sealed=True)
        return _servers[key]


def stop_programs() -> None:
    """End all programs and the processes that wait for one; the next program starts new ones."""
    with _lock:
        while _servers:
            _servers.popitem()[1].close()


environment = Python()
