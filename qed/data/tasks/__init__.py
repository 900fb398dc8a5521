"""The built-in tasks: one file per task or benchmark, with `load(split) -> list[Problem]`.

A task is named NAME[:split][@PATH] or hub:DATASET[:split][@PATH]; a path to a data file or folder is the task `files`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qed.config import plugins
from qed.config.task_names import TaskName, parse_task
from qed.data.sources import local
from qed.data.sources.explain import format_reasons
from qed.data.tasks.checking import load_own, require_split
from qed.errors import DataError, UsageError
from qed.types import Problem

MANIFEST = "MANIFEST.json"  # describes a snapshot of several tasks


def load_task(
    name: str,
    split: str,
    mapping: Mapping[str, str],
    left_out: Counter[str] | None = None,
    revisions: Mapping[str, str] | None = None,
    originals: dict[str, list[dict[str, Any]]] | None = None,
) -> list[Problem]:
    """Load the problems of a task by its name.

    Args:
        name: NAME[:split][@PATH], or hub:DATASET[:split][@PATH].
        split: used if the name has none.
        mapping: qed's column names to those of a file; the name's own columns replace it.
        left_out: receives counts of skipped rows, by reason.
        revisions: hub commits by task or dataset, instead of the pinned ones.
        originals: receives the rows that were read, by problem id; generated tasks have none.

    Raises:
        UsageError: no such task or split.
        DataError: the data is missing, broken or empty.
    """
    task = parse_task(name)
    module = plugins.load_leaf("tasks", task.leaf)
    path = _find_in_snapshot(task)
    _check_split(task, path, getattr(module, "SPLITS", ()))
    counts: Counter[str] = Counter()
    if hasattr(module, "read"):
        revision = (revisions or {}).get(task.dataset, "")
        # A user's task may not have these parameters.
        extra = {
            **({} if originals is None else {"originals": originals}),
            **({"source": task.source} if task.source else {}),
        }
        columns = task.columns or mapping
        problems: list[Problem] = module.read(task.split or split, path, columns, counts, revision, **extra)
    elif task.path or task.columns:
        raise UsageError(
            f"The task {task.leaf} generates its problems and reads no file: remove '@', '?' and what follows."
        )
    else:
        problems = load_own(task.leaf, module, task.split or split)
    if not problems:
        reasons = format_reasons(counts)
        raise DataError(f"{name} has no problems: {f'left out are {reasons}' if reasons else 'there are no rows'}.")
    if left_out is not None:
        left_out.update(counts)
    return problems


def _check_split(task: TaskName, path: str, splits: Sequence[str]) -> None:
    """Raise if neither the task nor the folder has the split."""
    has_split = bool(task.split) and (Path(path) / task.split).is_dir()
    if path and task.split and splits and not has_split:
        require_split(task.leaf, task.split, splits)


def _find_in_snapshot(task: TaskName) -> str:
    """Return a task's path; in a snapshot of `qed data prepare`, the folder of this task."""
    folder = Path(task.path) / task.leaf
    return str(folder) if task.path and folder.is_dir() and (folder.parent / MANIFEST).is_file() else task.path


def has_test_split(name: str) -> bool:
    """Return whether a task, its file or its folder has a test split, other than the one named for training."""
    task = parse_task(name)
    if task.split:
        return False
    if task.path and (Path(task.path).is_file() or task.leaf in ("files", "hub")):
        return local.has_split(_find_in_snapshot(task), "test", task.source.split("/", 2)[2:])
    return "test" in getattr(plugins.load_leaf("tasks", task.leaf), "SPLITS", ())


def suggest_prompt(name: str) -> str:
    """Return the name of a task's default prompt."""
    leaf = parse_task(name).leaf
    prompt = getattr(plugins.load_leaf("tasks", leaf), "PROMPT", None)
    if not isinstance(prompt, str):
        raise UsageError(f'The task {leaf} defines no prompt. Add PROMPT = "r1_zero" to it, or give --prompt.')
    return prompt


def find_hub_name(name: str) -> str:
    """Return the hub name of a task's dataset, `owner/name`; empty if the task is not read from the hub."""
    task = parse_task(name)
    if task.source:
        return task.dataset
    if task.leaf not in plugins.list_leaves("tasks"):
        return ""
    benchmark = getattr(plugins.load_leaf("tasks", task.leaf), "BENCHMARK", None)
    splits = benchmark.splits if benchmark else {}
    dataset = splits.get(task.split) or next(iter(splits.values()), None)
    return dataset.name if dataset else ""
