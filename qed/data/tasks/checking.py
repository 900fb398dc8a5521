"""Load the problems of a task that makes them itself, and refuse what would be misread later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from qed.config import plugins
from qed.config.user_code import require_callable
from qed.errors import UsageError
from qed.types import Problem

FORM = 'Problem(id="1", question="What is 1 + 2?", answer="3")'


def load_own(name: str, module: ModuleType, split: str) -> list[Problem]:
    """Return the problems of a split of a task with `load`; those of a user's own task are checked.

    Raises:
        UsageError: it has no such function, or returns something else than problems with ids of their own.
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
    """Refuse what is no problem, or has a number where a text is read."""
    if not isinstance(problem, Problem):
        raise UsageError(
            f"The task {name}: problem {number} is of the type {type(problem).__name__}; load must return problems, as "
            f"qed.types.{FORM}."
        )
    for part in ("id", "question", "answer", "solution"):
        if not isinstance(value := getattr(problem, part), str):
            raise UsageError(f"The task {name}: the {part} of problem {number} must be a text, not {value!r}.")


def _check_ids(name: str, problems: Sequence[Problem]) -> None:
    """Refuse two questions with one id: all but one of them would be left out as copies."""
    questions: dict[str, str] = {}
    for problem in problems:
        if questions.setdefault(problem.id, problem.question) != problem.question:
            raise UsageError(f"The task {name}: two questions have the id {problem.id!r}; each needs one of its own.")
