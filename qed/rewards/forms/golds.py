"""The correct answer that a reward for another library receives, under the parameter name that it uses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from qed.grading.equal import equal
from qed.grading.extract import extract_final_answer, find_last_boxed
from qed.rewards.forms.calling import list_named
from qed.types import Problem

# Parameters that mean the final answer, also as plurals. A data column with such a name takes precedence.
GOLDS = (
    *("answer", "ground_truth", "gold", "target", "label", "reference", "gt", "expected", "expected_answer"),
    *("final_answer", "correct_answer", "reference_answer", "gold_answer", "target_answer", "true_answer"),
    *("test_case", "gold_solution", "gt_answer"),
)
SOLUTION = "solution"
CHECKER = "math_verify"  # functions that use it parse the gold as LaTeX


def is_gold(name: str) -> bool:
    """Return whether a parameter of this name means the correct answer."""
    return name.removesuffix("s") in (*GOLDS, SOLUTION)


def read_gold(problem: Problem) -> Any:
    """Return the correct answer as in the data: possibly a dict or a list in verl's data, otherwise a text."""
    raw = problem.meta.get("ground_truth")
    return raw if isinstance(raw, dict | list) else problem.answer


def name_golds(names: Iterable[str], problem: Problem, boxed: bool) -> dict[str, Any]:
    """Return the values of the names that mean a problem's correct answer; for `boxed` see `choose_solution`."""
    found: dict[str, Any] = {}
    for name in names:
        if name.removesuffix("s") == SOLUTION:
            found[name] = choose_solution(problem, boxed)
        elif name.removesuffix("s") in GOLDS:
            found[name] = read_gold(problem) if name.startswith("ground_truth") else problem.answer
    return found


def list_gold_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the parameters of a function that mean the correct answer."""
    return [name for name in list_named(function) if is_gold(name)]


def choose_solution(problem: Problem, boxed: bool) -> str:
    """Return the worked solution if the correct answer can be extracted from it, otherwise the answer.

    Functions called `accuracy_reward` compare with the answer that they extract from `solution`. From a worked solution
    without an extractable answer they would get something else, or nothing. For those that use math_verify the answer
    is `boxed`: without a box math_verify does not parse `\\frac12`, and parses `2\\sqrt3` as 2.
    """
    own = problem.meta.get(SOLUTION)
    worked = own if isinstance(own, str) and own else problem.solution
    if worked and (not problem.answer or _ends_in(worked, problem.answer, boxed)):
        return worked
    return f"\\boxed{{{problem.answer}}}" if boxed else problem.answer


@functools.lru_cache(maxsize=4096)
def _ends_in(worked: str, answer: str, boxed: bool) -> bool:
    """Return whether a worked solution is the answer or ends in it; with `boxed`, only if it is in a box."""
    if boxed:
        found = find_last_boxed(worked)
    else:
        final = extract_final_answer(worked, "flexible")
        found = final.answer if final else None
    return (worked.strip() == answer.strip() and not boxed) or (found is not None and equal(answer, found).correct)


def reads_mathematics(function: Callable[..., Any]) -> bool:
    """Return whether a function's module uses math_verify."""
    while hasattr(function, "func"):  # a partial
        function = function.func
    own = getattr(function, "__globals__", None) or getattr(type(function).__call__, "__globals__", {})
    modules = (getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in list(own.values()))
    return any(isinstance(name, str) and name.partition(".")[0] == CHECKER for name in modules)
