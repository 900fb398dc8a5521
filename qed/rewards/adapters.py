"""Several kinds of reward behind one interface: qed's own, and those of TRL, verl and OpenRLHF in `forms/`.

**qed**: `reward(rollout) -> Grade`, a function or an instance of a frozen dataclass whose fields are its settings. The
kind is recognised by the function's parameters. A reward may be a function, a coroutine function, a partial, an object
with `__call__`, a class of such objects, or a factory that returns one of these.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from qed.errors import UsageError, suggest_nearest
from qed.rewards.forms.calling import (
    GradeFunction,
    check_grade,
    is_async,
    join_results,
    list_named,
    list_needed,
    list_parameters,
    read_later,
    takes_any,
)
from qed.rewards.forms.openrlhf import wrap_openrlhf
from qed.rewards.forms.trl import wrap_trl
from qed.rewards.forms.verl import MANY, SIGNS, wrap_verl
from qed.rewards.verdicts import grade_by_number
from qed.types import Grade, Rollout

__all__ = ["FORMS", "GradeFunction", "RewardFunction", "find_form", "find_functions", "wrap_function"]

FORMS = (
    "reward(rollout) -> Grade or a number",
    "compute_score(data_source, solution_str, ground_truth, extra_info=None), as in verl",
    "functions with a parameter named completions, (prompts, completions, **columns) -> list of numbers, as in TRL",
    "reward_func(queries, prompts, labels), as in OpenRLHF",
)

PLAIN_TYPES = {*("int", "float", "str", "bool"), *map(str, (int, float, str, bool))}


@dataclass(frozen=True)
class RewardFunction:
    """A reward that a file defines: its name, its function, and whether it needs all answers to a problem at once.

    `form` is qed, TRL, verl or OpenRLHF, and `called` is the original function of the file.
    """

    name: str
    grade: GradeFunction
    batched: bool = False
    form: str = "qed"
    called: Callable[..., Any] | None = None


def find_form(function: Any) -> str:
    """Return the form of a callable, by its parameters: TRL, verl, OpenRLHF, qed, or an empty string."""
    if not callable(function) or isinstance(function, type):
        return ""
    named = set(list_named(function))
    if "queries" in named:
        return "OpenRLHF"
    if named & {"completions", "completion_ids"} or ("prompts" in named and takes_any(function)):
        return "TRL"
    if named & (SIGNS | MANY):
        return "verl"
    parameters = list_parameters(function)
    positional = [one for one in parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL)]
    # A factory may also have a single parameter, but a number or a text is not a rollout.
    needed = [name for name in list_needed(function) if str(parameters[name].annotation) not in PLAIN_TYPES]
    return "qed" if len(needed) == len(list_needed(function)) == 1 or positional else ""


def wrap_function(name: str, function: Any, conversational: bool = False) -> RewardFunction:
    """Wrap a callable according to the form of its parameters.

    Args:
        name: the name of the reward in records and messages.
        function: a function, or anything that `prepare_callable` turns into one.
        conversational: pass messages instead of strings to TRL functions.

    Raises:
        UsageError: its parameters match no known form.
    """
    function = prepare_callable(name, function)
    form = find_form(function)
    if form == "TRL":
        return RewardFunction(name, wrap_trl(name, function, conversational), True, form, function)
    if form == "OpenRLHF":
        return RewardFunction(name, wrap_openrlhf(name, function), True, form, function)
    if form == "verl":
        batched = bool(MANY.intersection(list_named(function))) or is_async(function)
        return RewardFunction(name, wrap_verl(name, function), batched, form, function)
    return RewardFunction(name, wrap_native(name, function), is_async(function), "qed", function)


def prepare_callable(name: str, target: Any) -> Callable[..., Any]:
    """Return the function that grades: an instance of a class, the result of a factory, or the function itself.

    Raises:
        UsageError: a class or factory needs arguments, or the parameters match no known form.
    """
    if find_form(target):
        return target  # type: ignore[no-any-return]
    needed = list_needed(target)
    if needed:
        raise UsageError(
            f"{name}({', '.join(needed)}) is not a reward by its parameters. If it returns one, give its arguments: "
            f"--data.reward_options {name}.{needed[0]}=VALUE. A reward has one of these forms: {'; '.join(FORMS)}."
        )
    made = target()
    if not find_form(made):
        raise UsageError(f"{name} is not a reward by its parameters. Use one of these forms: {'; '.join(FORMS)}.")
    return made  # type: ignore[no-any-return]


def find_functions(
    module: ModuleType, name: str, function: str, target: Any, conversational: bool
) -> list[RewardFunction]:
    """Return the rewards of a module: the named function, or all that the module defines if `function` is empty.

    `target` is the module's attribute of that name, or its `reward`, with its settings applied; None if there is none.

    Raises:
        UsageError: the module defines no reward, or has no function of that name.
    """
    if function:
        if not callable(target):
            public = [*_list_rewards(module), *_list_rollout_functions(module)]
            public = public or [key for key, _ in _list_public(module, _list_names(module))]
            found = f" It has: {', '.join(public)}." if public else ""
            raise UsageError(f"{name} has no function '{function}'.{suggest_nearest(function, public)}{found}")
        return [wrap_function(function, target, conversational)]
    for own in (target, getattr(module, "compute_score", None)):
        if find_form(own) in ("qed", "verl", "OpenRLHF"):
            return [wrap_function(name, own, conversational)]
    rewards = _list_rewards(module)
    if not rewards:
        own = _list_own_names(module)
        ordered = _list_public(module, [key for key in _list_names(module) if key in own])
        makers = [f"FILE:{key}" for key, value in ordered if inspect.isroutine(value)]
        hint = f" If one of its functions returns a reward, choose it: {' or '.join(makers)}." if makers else ""
        raise UsageError(f"{name} defines no reward. A file may define one of: {'; '.join(FORMS)}.{hint}")
    if others := _list_rollout_functions(module):
        raise UsageError(
            f"{name} defines {', '.join(rewards)}, and {', '.join(others)} for a rollout: choose one as FILE:NAME, or "
            f"several as FILE:{next(iter(rewards))},FILE:{others[0]}. Begin the name of a helper with _."
        )
    return [wrap_function(key, value, conversational) for key, value in rewards.items()]


def _list_rewards(module: ModuleType) -> dict[str, Any]:
    """Return the module's public rewards in the form of TRL, verl or OpenRLHF, by name.

    Imported rewards count only if the module defines none itself, because a file may import a reward to call it.
    """
    names = _list_names(module)
    imported = set(names) - _list_own_names(module)
    own = _collect_rewards(module, [name for name in names if name not in imported])
    return own or _collect_rewards(module, imported)


def _list_rollout_functions(module: ModuleType) -> list[str]:
    """Return the names of the module's own public functions of one parameter that is called `rollout`."""
    own = _list_own_names(module)
    public = _list_public(module, [name for name in _list_names(module) if name in own])
    return [name for name, value in public if inspect.isroutine(value) and list(list_parameters(value)) == ["rollout"]]


def _collect_rewards(module: ModuleType, names: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _list_public(module, names):
        if isinstance(value, type):
            usable = not inspect.isabstract(value) and not list_needed(value) and _is_called_by_form(value)
            value = value() if usable else None
        if find_form(value) in ("TRL", "verl", "OpenRLHF") and not any(value is other for other in found.values()):
            found[name] = value
    return found


def _is_called_by_form(kind: type) -> bool:
    """Return whether the instances of a class are callable with the parameters of a known form."""
    methods = [vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)]
    return bool(methods) and find_form(methods[0]) in ("TRL", "verl", "OpenRLHF")


def _list_public(module: ModuleType, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        if not name.startswith("_") and callable(value := getattr(module, name, None)):
            yield name, value


def _list_names(module: ModuleType) -> list[str]:
    """Return the names of a module in order; a module with lazy imports lists more in `dir`."""
    return list(dict.fromkeys([*vars(module), *dir(module)]))


def _list_own_names(module: ModuleType) -> set[str]:
    """Return the names that a module defines or assigns at its top level, and those in its `__all__`."""
    own = set(getattr(module, "__all__", ()))
    file = getattr(module, "__file__", None) or ""
    if not file.endswith(".py"):
        return own
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                own.add(name)
            case ast.Assign(targets=targets):
                own |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                own.add(name)
    return own


def wrap_native(name: str, reward: Callable[[Rollout], Any]) -> GradeFunction:
    """Wrap a reward in qed's form as a function of rollouts."""

    def grade_rollouts(rollouts: Sequence[Rollout]) -> Any:
        # Copies, because the verdict and other rewards read the answer as it was.
        results = join_results([reward(rollout.copy_with()) for rollout in rollouts])
        return read_later(results, lambda got: [_read_grade(name, *each) for each in zip(got, rollouts, strict=True)])

    return grade_rollouts


def _read_grade(name: str, result: Any, rollout: Rollout) -> Grade:
    if isinstance(result, Grade):
        return check_grade(result)
    if not hasattr(result, "__float__"):  # NumPy and torch numbers have it, strings do not
        raise UsageError(
            f"The reward {name} returned {type(result).__name__}; it must return a number or a qed.types.Grade, such "
            "as Grade(reward=1.0, correct=True, format_ok=True, extracted=None)."
        )
    return grade_by_number(result, rollout)
