"""Rewards that are functions of the caller's Python program; they run in the caller's process.

A function takes one `Rollout`, and returns a number, a `Grade`, or None where it does not apply. With a number, qed's
own grader decides `correct` from the final answer of the text. A coroutine function is awaited, together with all
others of the step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Any

from qed.errors import UsageError
from qed.guards.signals import check_signals
from qed.guards.watchdog import beat
from qed.rewards.adapters import GradeFunction
from qed.rewards.verdicts import grade_by_final_answer
from qed.types import Grade, Group, Rollout

POLL_SECONDS = 0.2  # between checks for a signal while coroutines are awaited


@dataclass(frozen=True)
class GroupFunction:
    """A function of another library, such as TRL, that `bind` turns into one of all answers to a problem.

    Called with a single rollout, it grades that rollout alone.
    """

    name: str
    bind: Callable[[bool], GradeFunction]  # whether the function gets messages instead of strings

    def __call__(self, rollout: Rollout) -> Grade | None:
        return self.bind(False)([rollout])[0]


class EventLoop:
    """An event loop in a thread of its own, because the caller's thread may already run one, as in a notebook.

    It lives as long as the run, so that a client with open connections can be used in every step.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def await_all(self, awaitables: Sequence[Awaitable[Any]], seconds: float) -> list[Any]:
        """Await all of them together, each for at most so many seconds; an exception stands in place of its result."""
        if not awaitables:
            return []
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rewards", daemon=True).start()
        gathered = asyncio.run_coroutine_threadsafe(_gather(awaitables, seconds), self._loop)
        try:
            while wait([gathered], POLL_SECONDS).not_done:
                check_signals("grade", progress=False)
        except BaseException:  # an interrupt must not wait for answers that may never arrive
            gathered.cancel()
            raise
        return gathered.result()

    def close(self) -> None:
        """Stop the loop and its thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


async def _gather(awaitables: Sequence[Awaitable[Any]], seconds: float) -> list[Any]:
    async def await_one(awaitable: Awaitable[Any]) -> Any:
        try:
            return await asyncio.wait_for(awaitable, seconds)
        finally:
            beat()

    return await asyncio.gather(*map(await_one, awaitables), return_exceptions=True)


class CallableReward:
    """A function of the caller as a part of a reward.

    `call` runs it on all answers of a step; then the object itself returns the grades of some of these answers.
    `results` holds what the function returned or raised, by the `id` of the answer; an awaitable must be replaced by
    its result.

    Args:
        function: of one rollout, or a `GroupFunction`.
        name: of the part, for a function without a name of its own.
        conversational: give functions of TRL messages instead of strings.
    """

    def __init__(self, function: Callable[..., Any], name: str, conversational: bool) -> None:
        own = function.name if isinstance(function, GroupFunction) else getattr(function, "__name__", "")
        self.name = own if own.isidentifier() else name
        self.results: dict[int, Any] = {}
        self._function = function
        self._grade_group = function.bind(conversational) if isinstance(function, GroupFunction) else None

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Grade | None]:
        return [_read_result(self.results[id(rollout)], rollout) for rollout in rollouts]

    def call(self, groups: Sequence[Group]) -> None:
        """Call the function on all answers; an exception becomes the result of its answer."""
        self.results = {}
        for group in groups:
            check_signals("grade")
            if self._grade_group is None:
                self.results |= {id(rollout): _call(self._function, rollout) for rollout in group}
            else:
                self.results |= zip(map(id, group), _call_on_group(self._grade_group, group), strict=True)


def _read_result(result: Any, rollout: Rollout) -> Grade | None:
    if isinstance(result, BaseException):
        raise result
    if result is None or isinstance(result, Grade):
        return result
    if not hasattr(result, "__float__"):  # numbers of numpy and torch have it, a string has not
        raise UsageError(f"it returned {type(result).__name__}; it must return a number, a qed.Grade, or None.")
    return replace(grade_by_final_answer(rollout), reward=float(result), parts={})


def _call(function: Callable[..., Any], argument: Any) -> Any:
    """Return the result of a call, or the exception that it raised."""
    try:
        return function(argument)
    except Exception as error:  # noqa: BLE001 -- a user's function may raise anything
        return error


def _call_on_group(grade_group: GradeFunction, group: Group) -> list[Any]:
    """Return the results of all answers to a problem; if that fails, of each answer alone."""
    results = _call(grade_group, group)
    if not isinstance(results, Exception):
        return list(results)
    if len(group) == 1:
        return [results]
    return [result for rollout in group for result in _call_on_group(grade_group, [rollout])]
