"""Checks of settings that name something: plugins, user code, data files of tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from qed.config import plugins
from qed.config.arguments import Flags
from qed.config.callables import is_callable_name
from qed.config.fields import Setting
from qed.config.layers import Entry
from qed.config.reward_names import AUTO, parse_reward
from qed.config.task_names import explain_pattern, explain_start, parse_task
from qed.config.values import COMMAND_LINE, Raw
from qed.errors import UsageError

REWARD, TRACKERS = "data.reward", "run.trackers"
TASKS = ("data.tasks", "evaluation.tasks")


def check_names(value: Any, entry: Entry, setting: Setting, flags: Flags, reads_data: bool) -> Any:
    """Check that the plugins and files that a value names exist; return it with plugin names spelled as their files.

    Args:
        value: value of the setting.
        entry: entry that set it.
        setting: the setting.
        flags: flags; they say whether YAML files may name code.
        reads_data: whether data files of tasks in YAML files must exist, too.

    Raises:
        UsageError: there is no such plugin or file, or it names code that is not allowed to run.
    """
    raw = entry.raw
    key = setting.key.removeprefix("sft.").removeprefix("rl.")
    if setting.shelf and key not in (REWARD, TRACKERS) and value != setting.default:
        value = _read_leaf(value, setting, raw, flags)
    check_task = partial(_check_task, reads_data=reads_data)
    checks: dict[str, Callable[[str, str, str, Flags], None]] = dict.fromkeys(TASKS, check_task)
    check = {**checks, REWARD: _check_reward, TRACKERS: _check_tracker}.get(key)
    if check is not None and value != setting.default:
        origins = [item.origin for item in raw.items] if raw.items else [raw.origin] * len(value)
        for text, origin in zip(value, origins, strict=True):
            try:
                check(text, origin, setting.key, flags)
            except UsageError as error:
                raise UsageError(f"{error}{_suggest_list(text, origin)}") from error
    return value


def _suggest_list(text: str, origin: str) -> str:
    """Return how to write several names in YAML, if the text is quoted and has a comma; otherwise an empty string."""
    if "," not in text or origin == COMMAND_LINE:
        return ""
    return f" In YAML, write several as a list: [{', '.join(part.strip() for part in text.split(','))}]."


def _read_leaf(name: str, setting: Setting, raw: Raw, flags: Flags) -> str:
    """Return a plugin's name as its file spells it, or the name of user code unchanged."""
    check_user_code(name, raw.origin, setting.key, flags)
    try:
        plugins.check_leaf(str(setting.shelf), name)
    except UsageError as error:
        raise UsageError(f"{raw.origin}: {setting.key}: {error}") from error
    return plugins.spell_leaf(name)


def check_user_code(name: str, origin: str, key: str, flags: Flags) -> None:
    """Raise a UsageError if a YAML file names user code, unless that is allowed."""
    if plugins.is_users_own(name) and origin != COMMAND_LINE and not flags.allow_user_code:
        raise UsageError(
            f"{origin}: {key} names code outside of qed, {name}, which would be executed. YAML files may come from "
            "others, so this needs --allow-user-code (Python: allow_user_code=True), or the name on the command line."
        )


def _check_reward(text: str, origin: str, key: str, flags: Flags) -> None:
    """Raise a UsageError unless a reward is NAME or WEIGHT*NAME with the name of a reward or of user code."""
    try:
        source = parse_reward(text).source
        check_user_code(source, origin, key, flags)
        if source != AUTO and not is_callable_name(source):
            plugins.check_leaf("rewards", source)
    except UsageError as error:
        raise UsageError(str(error) if str(error).startswith(origin) else f"{origin}: {key}: {error}") from error


def _check_tracker(text: str, origin: str, key: str, flags: Flags) -> None:
    """Raise a UsageError unless a tracker is one of qed's, or user code."""
    check_user_code(text, origin, key, flags)
    try:
        plugins.check_leaf("trackers", text)
    except UsageError as error:
        raise UsageError(f"{origin}: {key}: {error}") from error


def _check_task(text: str, origin: str, key: str, flags: Flags, reads_data: bool) -> None:
    """Raise a UsageError unless a task is NAME[:split][@PATH] with a known name, or a data file that exists."""
    task = parse_task(text)
    check_user_code(task.leaf, origin, key, flags)
    try:
        plugins.check_leaf("tasks", task.leaf)
    except UsageError as error:
        raise UsageError(f"{origin}: {key}: {error}") from error
    if (reads_data or origin == COMMAND_LINE) and task.path and not Path(task.path).exists():
        start = explain_pattern(task.path) or ("" if origin == COMMAND_LINE else explain_start(task.path))
        raise UsageError(f"{origin}: {key}: There is no file {task.path}.{start}{_explain_move(key, flags)}")


def _explain_move(key: str, flags: Flags) -> str:
    """Return how to resume a run whose data has been moved; an empty string if no run is resumed."""
    if not (flags.resume or flags.requeue):
        return ""
    allow = "" if key == "evaluation.tasks" else f" --allow-change {key}"
    return f" If it has been moved since the run began, set its new path: --{key} NEW{allow}."
