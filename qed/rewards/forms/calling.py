"""Call a reward function for another library with the arguments that it accepts, and await coroutines."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from qed.errors import UsageError, suggest_nearest
from qed.types import Grade, Rollout

Read = TypeVar("Read")
Grades = list[Grade | None]
# Grades all answers to a problem: returns a list of grades, None where it does not apply, or an awaitable of that.
GradeFunction = Callable[[Sequence[Rollout]], Grades | Awaitable[Grades]]


def list_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name; empty if Python does not know them, as for some built-ins."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def list_named(function: Callable[..., Any]) -> list[str]:
    """Return the parameters of a function that can be passed by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, parameter in list_parameters(function).items() if parameter.kind in kinds]


def list_needed(function: Callable[..., Any]) -> list[str]:
    """Return the required parameters of a function."""
    parameters = list_parameters(function)
    return [name for name in list_named(function) if parameters[name].default is inspect.Parameter.empty]


def takes_any(function: Callable[..., Any]) -> bool:
    """Return whether a function has **kwargs."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in list_parameters(function).values())


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling a function, or an object with `__call__`, returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def filter_accepted(name: str, function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the function accepts by name; all of them if it has **kwargs.

    Raises:
        UsageError: the function requires an argument that is not offered.
    """
    missing = [key for key in list_needed(function) if key not in offered]
    if missing:
        raise UsageError(explain_missing(name, missing[0], offered))
    named, everything = list_named(function), takes_any(function)
    return {key: value for key, value in offered.items() if everything or key in named}


def explain_missing(name: str, parameter: str, offered: Mapping[str, Any]) -> str:
    """Return the message about a required parameter that the data does not have."""
    return (
        f"The reward function {name} needs '{parameter}', which the data does not have."
        f"{suggest_nearest(parameter, offered)} Available: {', '.join(offered)}."
    )


def read_later(result: Any, read: Callable[[Any], Read]) -> Read | Awaitable[Read]:
    """Return `read(result)`, or an awaitable of it if the result is awaitable."""
    if not inspect.isawaitable(result):
        return read(result)

    async def finish() -> Read:
        return read(await result)

    return finish()


def call_or_replace(
    function: GradeFunction, rollouts: Sequence[Rollout], replacement: Callable[[Exception], Grades]
) -> Grades | Awaitable[Grades]:
    """Return a function's result, or an awaitable of it; if it raises, the replacement for the exception."""
    try:
        result = function(rollouts)
    except Exception as error:  # noqa: BLE001 -- user-defined code may raise anything
        return replacement(error)
    if not inspect.isawaitable(result):
        return result

    async def finish() -> Grades:
        try:
            return await result
        except Exception as error:  # noqa: BLE001
            return replacement(error)

    return finish()


def join_results(results: Sequence[Any]) -> Any:
    """Return the results as a list, or if any is awaitable, an awaitable that awaits them together."""
    return _gather(results) if any(map(inspect.isawaitable, results)) else list(results)


def wait_for(results: Sequence[Any]) -> list[Any]:
    """Return the results, awaiting awaitable ones together, whether or not an event loop is running here."""
    joined = join_results(results)
    if not inspect.isawaitable(joined):
        return list(joined)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(joined)  # type: ignore[arg-type]
    return _run_in_thread(joined)


def _run_in_thread(joined: Any) -> list[Any]:
    """Await in a separate thread, because this thread already runs an event loop, as in a notebook."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((asyncio.run(joined), None))
        except BaseException as error:  # noqa: BLE001 -- raised again in the caller's thread
            outcome.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    results, error = outcome[0]
    if error is not None:
        raise error
    return list(results)


async def _gather(results: Sequence[Any]) -> list[Any]:
    waiting = [result for result in results if inspect.isawaitable(result)]
    done = iter(await asyncio.gather(*waiting))
    return [next(done) if inspect.isawaitable(result) else result for result in results]


def read_number(value: Any) -> float | None:
    """Convert a Python, NumPy or torch number to a Python one; return None for other values, as for several numbers."""
    if not hasattr(value, "__float__"):  # a string, which `float` would parse
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def check_grade(grade: Grade) -> Grade:
    """Return a grade from user-defined code, with NumPy and torch numbers and flags converted to Python ones.

    Raises:
        UsageError: a field has a value of the wrong type.
    """
    fields = {"reward": grade.reward, "correct": grade.correct, "format_ok": grade.format_ok}
    wrong = [name for name, value in fields.items() if value is None or isinstance(value, str)]
    wrong += [] if hasattr(grade.reward, "__float__") or wrong else ["reward"]
    wrong += [] if grade.extracted is None or isinstance(grade.extracted, str) else ["extracted"]
    named = isinstance(grade.parts, Mapping) and all(hasattr(value, "__float__") for value in grade.parts.values())
    wrong += [] if named else ["parts"]
    if wrong:
        raise UsageError(
            f"it returned a Grade with {wrong[0]}={getattr(grade, wrong[0])!r}; reward and all parts must be numbers, "
            "correct and format_ok True or False, and extracted a string or None."
        )
    numbers = {name: float(value) for name, value in grade.parts.items()}
    # As in TRL, NaN means that a part does not apply to this answer; kept, it would make the step's mean NaN.
    parts = {name: number for name, number in numbers.items() if not math.isnan(number)}
    right, held = bool(grade.correct), bool(grade.format_ok)
    return replace(grade, reward=float(grade.reward), correct=right, format_ok=held, parts=parts)
