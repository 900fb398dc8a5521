"""Call an environment, which may be user code; errors name the failing line of the user's code."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qed.config.user_code import find_users_line
from qed.environments.base import Environment, Reply, State, replace_halves
from qed.errors import QedError, UsageError
from qed.rewards.forms.calling import check_grade
from qed.types import Grade, Problem


def ask_messages(environment: Environment, problem: Problem) -> list[str]:
    """Return the texts of the messages before an answer.

    Raises:
        UsageError: `start` fails, or does not return messages.
    """
    messages = _call(environment, "start", problem)
    form = 'a list of messages, each as {"role": "user", "content": problem.question}'
    if not isinstance(messages, list):
        raise _refuse(environment, "start", f"must return {form}, not {_name_kind(messages)}")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise _refuse(environment, "start", f"must return {form}, not a list with {_name_kind(message)}")
    return [replace_halves(message["content"]) for message in messages]


def ask_replies(environment: Environment, states: Sequence[State]) -> list[Reply | None]:
    """Return the environment's replies to the turns of several answers.

    Raises:
        UsageError: `step` or `reply` fails, does not return replies, or continues a message that has ended.
    """
    method = "step" if type(environment).reply is Environment.reply else "reply"
    replies = _call(environment, "reply", states)
    form = "must return a Reply or None for each answer"
    if not isinstance(replies, list):
        raise _refuse(environment, method, f"{form}, not {_name_kind(replies)}")
    if len(replies) != len(states):
        raise _refuse(environment, method, f"{form}: there are {len(states)} answers, and it returned {len(replies)}")
    for reply, state in zip(replies, states, strict=True):
        if reply is not None and not isinstance(reply, Reply):
            raise _refuse(environment, method, f"{form}, not {_name_kind(reply)}")
        if reply is not None and not reply.message:
            _check_continuation(environment, method, reply, state)
    return replies


def _check_continuation(environment: Environment, method: str, reply: Reply, state: State) -> None:
    """Reject a reply that continues a message if it is empty or if the message has ended."""
    if not reply.text:
        raise _refuse(environment, method, "has returned a Reply without text; None ends an answer")
    if state.ended:
        raise _refuse(
            environment,
            method,
            "has returned a Reply without message=True, but the policy had ended its message with an end token, so the "
            "text would be outside of any message. Add message=True, or return None where state.ended",
        )


def ask_grade(environment: Environment, grade: Grade, rewards: Sequence[float]) -> Grade:
    """Return the grade of an answer, as the environment's `finish` computes it.

    Args:
        environment: the environment of the answer.
        grade: the grade of the final answer.
        rewards: the rewards of the turns before the last one.

    Raises:
        UsageError: `finish` fails, or does not return a valid grade.
    """
    found = _call(environment, "finish", grade, rewards)
    if not isinstance(found, Grade):
        form = "must return a Grade, as dataclasses.replace(grade, reward=grade.reward + sum(rewards))"
        raise _refuse(environment, "finish", f"{form}, not {_name_kind(found)}")
    try:
        return check_grade(found)
    except UsageError as error:
        raise _refuse(environment, "finish", f"is wrong: {str(error).rstrip('.')}") from None


def _call(environment: Environment, method: str, *arguments: Any) -> Any:
    """Call a method and return its result, iterables other than texts and mappings as a list."""
    try:
        found = getattr(environment, method)(*arguments)
        return list(found) if isinstance(found, Iterable) and not isinstance(found, str | Mapping) else found
    except QedError:
        raise
    except Exception as error:
        raise UsageError(
            f"The environment {type(environment).__name__} failed with {type(error).__name__}: {error} "
            f"({find_users_line(error) or method})."
        ) from error


def _refuse(environment: Environment, method: str, why: str) -> UsageError:
    """Return an error that names a method of an environment and its location."""
    code = getattr(inspect.unwrap(getattr(type(environment), method)), "__code__", None)
    where = f" (line {code.co_firstlineno} of {code.co_filename})" if code else ""
    return UsageError(f"The environment {type(environment).__name__}: {method} {why}{where}.")


def _name_kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
