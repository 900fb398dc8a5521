"""The shelf of tasks: `load(split) -> list[Problem]`, one file a benchmark.

A task is named NAME[:split][@PATH]; a path to a data file or folder is the task `files`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qed.config import plugins
from qed.config.task_names import TaskName, parse_task
from qed.errors import DataError, UsageError, suggest_nearest
from qed.types import Problem

MANIFEST = "MANIFEST.json"  # what a snapshot of several tasks says of itself


def load_task(
    name: str,
    split: str,
    mapping: Mapping[str, str],
    left_out: Counter[str] | None = None,
    revisions: Mapping[str, str] | None = None,
    originals: dict[str, list[dict[str, Any]]] | None = None,
) -> list[Problem]:
    """The problems of a task as named.

    Args:
        name: NAME[:split][@PATH].
        split: taken where the name gives none.
        mapping: our names for columns of a file.
        left_out: counts rows that are no problem, by their reason.
        revisions: for tasks by name, the hub's commit to load in place of the pinned one.
        originals: gets the rows that were read, by the id of their problem; a task that makes its own has none.

    Raises:
        UsageError: no such task or split.
        DataError: the data is missing, broken or empty.
    """
    task = parse_task(name)
    module = plugins.load_leaf("tasks", task.leaf)
    known = getattr(module, "SPLITS", ())
    path = _find_in_snapshot(task)
    has_split = bool(task.split) and (Path(path) / task.split).is_dir()
    if path and task.split and known and task.split not in known and not has_split:
        raise UsageError(
            f"{task.leaf} has no split '{task.split}'.{suggest_nearest(task.split, known)} There are: "
            f"{', '.join(known)}."
        )
    if hasattr(module, "read"):
        revision = (revisions or {}).get(task.leaf, "")
        # A user's own task need not know how to keep its rows.
        keeping = {} if originals is None else {"originals": originals}
        problems: list[Problem] = module.read(task.split or split, path, mapping, left_out, revision, **keeping)
    elif task.path:
        raise UsageError(f"The task {task.leaf} makes its own problems and cannot read {task.path}; leave '@' out.")
    else:
        problems = module.load(task.split or split)
    if not problems:
        raise DataError(f"{name} has no problems.")
    return problems


def _find_in_snapshot(task: TaskName) -> str:
    """A task's path; of a snapshot of several tasks, as `qed data prepare` writes it, the folder of this one."""
    folder = Path(task.path) / task.leaf
    return str(folder) if task.path and folder.is_dir() and (folder.parent / MANIFEST).is_file() else task.path


def has_test_split(name: str) -> bool:
    """Whether a task brings held-out problems of its own, beside those named for training; a single file does not."""
    task = parse_task(name)
    if task.split or Path(task.path).is_file():
        return False
    return "test" in getattr(plugins.load_leaf("tasks", task.leaf), "SPLITS", ())


def suggest_prompt(name: str) -> str:
    """The prompt that a task is meant to be asked with."""
    prompt: str = plugins.load_leaf("tasks", parse_task(name).leaf).PROMPT
    return prompt
