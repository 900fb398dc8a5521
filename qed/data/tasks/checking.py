"""Load the problems of a task that generates them; reject unknown splits and values that would be misread later."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from types import ModuleType
from typing import Any

from qed.config import plugins
from qed.config.user_code import require_callable
from qed.errors import UsageError, suggest_nearest
from qed.types import Problem

FORM = 'Problem(id="1", question="What is 1 + 2?", answer="3")'


def require_split(task: str, split: str, splits: Collection[str]) -> None:
    """Reject a split that a task does not have.

    Raises:
        UsageError: the task has no such split; the message suggests the nearest one.
    """
    if split not in splits:
        raise UsageError(
            f"{task} has no split '{split}'.{suggest_nearest(split, splits)} There are: {', '.join(splits)}."
        )


def load_own(name: str, module: ModuleType, split: str) -> list[Problem]:
    """Return the problems of a split of a task with `load`; those of a user-defined task are checked.

    Raises:
        UsageError: it has no such function, or returns something other than problems with unique ids.
    """
    require_callable(f"The task {name}: load", getattr(module, "load", None), "(split)", 1)
    loaded: Any = module.load(split)
    if not plugins.is_users_own(name):
        return list(loaded)
    if not isinstance(loaded, Iterable):
        raise UsageError(f"The task {name}: load must return a list of problems, not {type(loaded).__name__}.")
    problems = list(loaded)
    for number, problem in enumerate(problems):
        _check_problem(name, number, problem)
    _check_ids(name, problems)
    return problems


def _check_problem(name: str, number: int, problem: Any) -> None:
    """Raise if a value is not a problem, or has a number in place of a text."""
    if not isinstance(problem, Problem):
        raise UsageError(
            f"The task {name}: problem {number} has the type {type(problem).__name__}; load must return problems such "
            f"as qed.types.{FORM}."
        )
    for part in ("id", "question", "answer", "solution"):
        if not isinstance(value := getattr(problem, part), str):
            raise UsageError(f"The task {name}: the {part} of problem {number} must be a string, not {value!r}.")


def _check_ids(name: str, problems: Sequence[Problem]) -> None:
    """Raise if two questions have the same id: all but one would be dropped as duplicates."""
    questions: dict[str, str] = {}
    for problem in problems:
        if questions.setdefault(problem.id, problem.question) != problem.question:
            raise UsageError(f"The task {name}: two questions have the id {problem.id!r}; ids must be unique.")
