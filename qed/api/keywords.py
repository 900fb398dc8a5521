"""Convert keywords of the Python API to command-line arguments, so that both have the same settings and messages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from numbers import Real
from typing import Any

from qed.config.arguments import Flags
from qed.config.callables import give_functions, name_function
from qed.data.sources.memory import LEAF, copy_rows, give_rows
from qed.data.sources.rows import Row
from qed.errors import UsageError

# The command-line flags that control how a run starts; the others control what is printed.
LAUNCH = ("resume", "requeue", "overwrite", "fast", "allow_user_code", "allow_change")
SPLITS = {"tasks": "train", "data.tasks": "train", "evaluation.tasks": "test"}  # names of rows passed from Python


@contextmanager
def use_keywords(keywords: Mapping[str, Any], known: Mapping[str, list[Row]] | None = None) -> Iterator[dict[str, str]]:
    """Yield keywords as texts; while the block runs, data and functions passed in them can be looked up by name.

    A keyword whose value is None is left out. A list becomes JSON, which the command line reads as a list.

    Args:
        keywords: the keywords of a call.
        known: further rows by name, which rows of the same name in the keywords replace.

    Raises:
        UsageError: a value cannot be a setting.
    """
    functions: dict[str, Callable[..., Any]] = {}
    rows = dict(known or {})
    texts = {}
    for key, value in _flatten(keywords):
        last = key.rpartition(".")[2]
        if last == "tasks":
            value = _name_tasks(key, value, rows)
        elif key == "reward" or key.endswith("data.reward"):  # in other sections `reward` is a number
            value = _name_functions(value, functions)
        if value is not None:
            texts[key] = _format(key, value)
    with give_functions(functions), give_rows(rows):
        yield texts


def list_options(texts: Mapping[str, str]) -> list[str]:
    """Return keywords as options of a training command.

    Raises:
        UsageError: a keyword is a flag that works only on the command line.
    """
    flags = {flag.name for flag in fields(Flags)}
    if refused := [key for key in texts if key in flags and key not in LAUNCH]:
        raise UsageError(f"{refused[0]} is an option of the command line, and has no effect in Python.")
    options = []
    for key, text in texts.items():
        if key in LAUNCH and text.lower() == "true":
            options.append(f"--{key}")
        elif key not in LAUNCH or text.lower() != "false":
            options.append(f"--{key}={text}")
    return options


def _flatten(keywords: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested dicts, such as `learner={"lr": 1e-3}`, under dotted keys."""
    for key, value in keywords.items():
        if isinstance(value, Mapping) and key.rpartition(".")[2] != "tasks":
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _name_tasks(key: str, tasks: Any, rows: dict[str, list[Row]]) -> Any:
    """Return the names of tasks, and add rows among them to `rows`."""
    if tasks is None or isinstance(tasks, str | os.PathLike):
        return tasks
    split = SPLITS.get(key, key.replace(".", "-"))
    if not isinstance(tasks, list | tuple) or not tasks or isinstance(tasks[0], Mapping):
        return [_name_rows(split, tasks, rows)]
    return [
        task if isinstance(task, str | os.PathLike) else _name_rows(f"{split}-{number}", task, rows)
        for number, task in enumerate(tasks, 1)
    ]


def _name_rows(name: str, table: Any, rows: dict[str, list[Row]]) -> str:
    rows[name] = copy_rows(name, table)
    return f"{LEAF}:{name}"


def _name_functions(reward: Any, functions: dict[str, Callable[..., Any]]) -> Any:
    """Return the entries of a reward by name, and add functions, alone or as `(weight, function)`, to `functions`."""
    if reward is None or isinstance(reward, str):
        return reward
    several = isinstance(reward, list | tuple) and not _is_weighted(reward)
    names = []
    for entry in reward if several else [reward]:
        weight, part = entry if _is_weighted(entry) else (None, entry)
        if callable(part):
            name = name_function(len(functions) + 1)
            functions[name] = part
            part = name
        names.append(part if weight is None else f"{weight}*{part}")
    return names


def _is_weighted(entry: Any) -> bool:
    """Return whether an entry of a reward is a pair `(weight, reward)`."""
    return isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[0], Real)


def _format(key: str, value: Any) -> str:
    """Format a value as the command line takes it."""
    if key == "allow_change" and isinstance(value, list | tuple):
        return ",".join(value)
    if isinstance(value, list | tuple):
        return json.dumps([_format(key, item) for item in value], ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__float__"):  # NumPy numbers too
        return str(value)
    raise UsageError(f"{key} cannot be a {type(value).__name__}: a setting is a text, a number, or a list of these.")
