"""Functions of the caller's Python program as rewards; in settings, `<callable>` stands for the function.

A function cannot be written to settings.yaml, so the settings hold its name, and the training process holds the
function: `<callable>` is the first one, `<callable 2>` the second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from qed.config.reward_names import parse_reward
from qed.errors import UsageError
from qed.host import set_context

NAME = re.compile(r"<callable( \d+)?>")
_given: ContextVar[Mapping[str, Callable[..., Any]]] = ContextVar("functions")


def name_function(number: int) -> str:
    """Return the name of the caller's function with this number, counted from 1."""
    return "<callable>" if number == 1 else f"<callable {number}>"


def is_callable_name(source: str) -> bool:
    """Return whether the source of a reward is a function of the caller's program."""
    return NAME.fullmatch(source) is not None


def give_functions(functions: Mapping[str, Callable[..., Any]]) -> AbstractContextManager[None]:
    """Make the functions of the caller's program available by their names within the context."""
    return set_context(_given, functions)


def find_function(name: str) -> Callable[..., Any]:
    """Return the function with this name.

    Raises:
        UsageError: the caller has passed no such function, as on the command line.
    """
    functions = _given.get({})
    if name not in functions:
        raise UsageError(
            f"data.reward is {name}: a function of the Python program that began this run, and only that program "
            "has it. From Python, pass the function again: reward=FUNCTION, in qed.train with out= and resume=True. "
            "From the command line, start another run with a file that defines the function: --reward ./FILE.py."
        )
    return functions[name]


def leave_out_missing(names: Iterable[str]) -> tuple[str, ...]:
    """Return the entries of a reward without functions that the caller has not passed."""
    sources = {name: parse_reward(name).source for name in names}
    given = _given.get({})
    return tuple(name for name, source in sources.items() if source in given or not is_callable_name(source))


def require_functions(names: Iterable[str]) -> None:
    """Raise a UsageError if an entry of a reward is a function that the caller has not passed."""
    for name in names:
        source = parse_reward(name).source
        if is_callable_name(source):
            find_function(source)
