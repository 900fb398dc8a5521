"""Rewards that are functions of the caller's Python program, which run in the caller's process.

A function takes one `Rollout`, and returns a number, a `Grade`, or None if it does not apply. For a number, qed's
own grader decides `correct` from the final answer of the text. Coroutines are awaited together with all others of the
step.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from qed.errors import UsageError
from qed.guards.signals import check_signals
from qed.guards.watchdog import beat
from qed.rewards.adapters import find_form
from qed.rewards.forms.calling import GradeFunction, check_grade, wait_for
from qed.rewards.verdicts import grade_by_number
from qed.types import Grade, Group, Rollout

POLL_SECONDS = 0.2  # between checks for a signal while coroutines are awaited


@dataclass(frozen=True)
class GroupFunction:
    """A reward function for another library, such as TRL, which `wrap` converts to grade all answers to a problem.

    Called with a single rollout, it grades only that rollout.
    """

    name: str
    wrap: Callable[[bool], GradeFunction]  # whether the function gets messages instead of strings

    def __call__(self, rollout: Rollout) -> Grade | None:
        grades: list[Grade | None] = wait_for([self.wrap(False)([rollout])])[0]
        return grades[0]


class EventLoop:
    """An event loop in a separate thread, because the caller's thread may already run one, as in a notebook.

    It lives as long as the run, so that a client can keep its connections open between steps.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.close: Callable[[], Any] = lambda: None

    def await_all(self, awaitables: Sequence[Awaitable[Any]], seconds: float) -> list[Any]:
        """Await all of them together, each for at most so many seconds; a failed one yields its exception."""
        if not awaitables:
            return []
        if self._loop is None:
            self._loop = self._start()
        gathered = asyncio.run_coroutine_threadsafe(_gather(awaitables, seconds), self._loop)
        try:
            while wait([gathered], POLL_SECONDS).not_done:
                check_signals("grade", progress=False)
        except BaseException:  # an interrupt must not wait for answers that may never arrive
            gathered.cancel()
            raise
        return gathered.result()

    def _start(self) -> asyncio.AbstractEventLoop:
        """Start the thread, and return its loop; `close` or the deletion of this object ends both."""
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        threading.Thread(target=asyncio.run, args=(_serve(started),), name="rewards", daemon=True).start()
        loop, stop = started.result()
        self.close = weakref.finalize(self, loop.call_soon_threadsafe, stop.set)
        return loop


async def _serve(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    """Keep the loop running until the event is set; `asyncio.run` then cancels the remaining tasks."""
    stop = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stop))
    await stop.wait()


async def _gather(awaitables: Sequence[Awaitable[Any]], seconds: float) -> list[Any]:
    async def await_one(awaitable: Awaitable[Any]) -> Any:
        try:
            return await asyncio.wait_for(awaitable, seconds)
        finally:
            beat()

    return await asyncio.gather(*map(await_one, awaitables), return_exceptions=True)


# How to pass a function with the parameters of another library.
WRAPPERS = {
    "TRL": "pass it as qed.rewards.trl(FUNCTION)",
    "verl": "pass it as qed.rewards.verl(FUNCTION)",
    "OpenRLHF": "pass its file, as reward='./FILE.py:FUNCTION'",
}


@dataclass
class Call:
    """A call of a function with some answers; `result` is what it returned or raised, possibly an awaitable."""

    reward: CallableReward
    rollouts: Group
    result: Any


class CallableReward:
    """A function of the caller as a part of a reward.

    `call` runs it on all answers of a step, and `store` saves the results, once awaitables are awaited. Calling the
    object then returns the grades of any of these answers.

    Args:
        function: a function of one rollout, or a `GroupFunction`.
        name: name of the part, for a function without a name.
        conversational: pass messages instead of strings to TRL functions.
    """

    def __init__(self, function: Callable[..., Any], name: str, conversational: bool) -> None:
        own = getattr(function, "__name__", "")
        self._function: Callable[[Any], Any] = function
        self._groups = isinstance(function, GroupFunction)
        if isinstance(function, GroupFunction):
            own, self._function = function.name, function.wrap(conversational)
        elif (form := find_form(function)) in WRAPPERS:
            raise UsageError(
                f"The function {own or name} has the parameters of {form}, but is called with one qed.Rollout here: "
                f"{WRAPPERS[form]}."
            )
        self.name = own if own.isidentifier() else name
        self._results: dict[int, Any] = {}

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Grade | None]:
        return [_read_result(self._results[id(rollout)], rollout) for rollout in rollouts]

    def call(self, groups: Sequence[Group]) -> list[Call]:
        """Call the function on each answer, or on all answers to a problem; it may raise anything."""
        units = groups if self._groups else [[rollout] for group in groups for rollout in group]
        calls = []
        for unit in units:
            check_signals("grade")
            try:
                given = [rollout.copy_with() for rollout in unit]  # what a function assigns must not reach training
                result = self._function(given if self._groups else given[0])
            except Exception as error:  # noqa: BLE001 -- a user's function may raise anything
                result = error
            calls.append(Call(self, unit, result))
        return calls

    def store(self, calls: Sequence[Call]) -> None:
        """Save the results of a step's calls, replacing those of the previous step."""
        self._results = {}
        for call in calls:
            single = not self._groups or isinstance(call.result, BaseException)
            results = [call.result] * len(call.rollouts) if single else call.result
            self._results |= zip(map(id, call.rollouts), results, strict=True)


def _read_result(result: Any, rollout: Rollout) -> Grade | None:
    if isinstance(result, BaseException):
        raise result
    if result is None:
        return None
    if isinstance(result, Grade):
        return check_grade(result)
    if not hasattr(result, "__float__"):  # NumPy and torch numbers have it, strings do not
        raise UsageError(f"it returned {type(result).__name__}; it must return a number, a qed.Grade, or None.")
    return grade_by_number(result, rollout)
