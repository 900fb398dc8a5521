"""Three kinds of reward behind one interface: qed's own, verl's `compute_score`, and TRL's reward functions.

**qed**: `reward(rollout) -> Grade`, a function or an instance of a frozen dataclass whose fields are its settings.

**verl**: `compute_score(data_source, solution_str, ground_truth, extra_info=None)` returns a number, or a dict with
`score` and further numbers, which become parts. The answer is correct when `acc` is positive, or, without `acc`, when
the score is positive. `pred`, if present, is the extracted answer.

**TRL**: `f(prompts, completions, **columns) -> list[float | None]`, called once for all answers to a problem. Its score
does not say whether the answer is correct, so qed's own grader decides `correct` from the final answer of the text.
None and NaN mean that the function does not apply to an answer: it adds nothing and is not logged. An answer to which
no function applies has no reward, see `qed.types.Grade`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from qed.errors import UsageError, suggest_nearest
from qed.rewards.verdicts import grade_by_final_answer
from qed.types import Grade, Rollout

GradeFunction = Callable[[Sequence[Rollout]], list[Grade | None]]
FORMS = (
    "reward(rollout) -> Grade",
    "compute_score(data_source, solution_str, ground_truth, extra_info=None), as in verl",
    "functions with a parameter named completions, (prompts, completions, **columns) -> list of numbers, as in TRL",
)


@dataclass(frozen=True)
class RewardFunction:
    """A reward that a file defines: its name, its function, and whether it needs all answers to a problem at once."""

    name: str
    grade: GradeFunction
    batched: bool = False


def find_functions(
    module: ModuleType, name: str, function: str, target: Any, conversational: bool
) -> list[RewardFunction]:
    """Return the rewards of a module: the named function, or all that the module defines if `function` is empty.

    `target` is the module's attribute of that name, or its `reward`, with its settings applied; None if it has none.

    Raises:
        UsageError: the module defines no reward, or has no function of that name.
    """
    if function:
        return [_pick_function(module, name, function, target, conversational)]
    if callable(target) and not _accepts(target, "completions"):
        return [RewardFunction(name, _wrap_native(name, target))]
    score = getattr(module, "compute_score", None)
    if callable(score):
        return [RewardFunction(name, _wrap_verl(name, score))]
    functions = _list_trl_functions(module)
    if not functions:
        raise UsageError(f"{name} defines no reward. A file may define one of: " + "; ".join(FORMS) + ".")
    return [RewardFunction(trl.__name__, _wrap_trl(trl, conversational), True) for trl in functions]


def _pick_function(module: ModuleType, name: str, function: str, target: Any, conversational: bool) -> RewardFunction:
    """Wrap the named function by the form that its parameters show."""
    if not callable(target):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{name} has no function '{function}'.{suggest_nearest(function, public)}")
    if _accepts(target, "completions"):
        return RewardFunction(function, _wrap_trl(target, conversational), True)
    if _accepts(target, "solution_str"):
        return RewardFunction(function, _wrap_verl(function, target))
    return RewardFunction(function, _wrap_native(function, target))


def _list_trl_functions(module: ModuleType) -> list[Callable[..., Any]]:
    """Return the public functions that the module itself defines and that take `completions`."""
    return [
        value
        for key, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not key.startswith("_")
        and _accepts(value, "completions")
    ]


def _accepts(function: Callable[..., Any], parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters


def _filter_accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the function accepts by name; all of them if it takes **kwargs.

    Raises:
        UsageError: the function needs an argument that is not offered.
    """
    parameters = inspect.signature(function).parameters
    takes_kwargs = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = [
        key
        for key, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    missing = [key for key in named if parameters[key].default is inspect.Parameter.empty and key not in offered]
    if missing:
        name = getattr(function, "__name__", "reward")
        raise UsageError(
            f"The reward function {name} needs '{missing[0]}', which the data does not have."
            f"{suggest_nearest(missing[0], offered)} It may take: {', '.join(offered)}."
        )
    return {key: value for key, value in offered.items() if takes_kwargs or key in named}


def _wrap_native(name: str, reward: Callable[[Rollout], Any]) -> GradeFunction:
    def grade_rollouts(rollouts: Sequence[Rollout]) -> list[Grade | None]:
        grades = [reward(rollout) for rollout in rollouts]
        for grade in grades:
            if not isinstance(grade, Grade):
                kind = type(grade).__name__
                raise UsageError(f"The reward {name} returned {kind}; it must return a qed.types.Grade.")
        return grades

    return grade_rollouts


def _wrap_verl(name: str, score: Callable[..., Any]) -> GradeFunction:
    def grade_rollouts(rollouts: Sequence[Rollout]) -> list[Grade | None]:
        return [
            _read_verl_result(name, score(**_filter_accepted(score, _build_verl_arguments(rollout))))
            for rollout in rollouts
        ]

    return grade_rollouts


def _build_verl_arguments(rollout: Rollout) -> dict[str, Any]:
    meta = rollout.problem.meta
    return {
        "data_source": meta.get("data_source") or meta.get("source") or "",
        "solution_str": rollout.text,
        "ground_truth": rollout.problem.answer,
        "extra_info": dict(meta.get("extra_info") or {}),
    }


def _read_verl_result(name: str, result: Any) -> Grade:
    values = dict(result) if isinstance(result, Mapping) else {"score": result}
    score = values.pop("score", None)
    if not hasattr(score, "__float__"):
        kind = type(result).__name__
        raise UsageError(f"compute_score of {name} returned {kind}; it must return a number, or a dict with 'score'.")
    # numpy and torch scalars count as numbers; a string has no __float__.
    accuracy = values.get("acc", score)
    correct = hasattr(accuracy, "__float__") and float(accuracy) > 0
    parts = {key: float(value) for key, value in values.items() if hasattr(value, "__float__")}
    extracted = None if values.get("pred") is None else str(values["pred"])
    reason = "acc > 0" if "acc" in values else "score > 0"
    return Grade(float(score), correct, True, extracted, parts, "foreign", reason if correct else f"not {reason}")


def _wrap_trl(function: Callable[..., Any], conversational: bool) -> GradeFunction:
    name = function.__name__

    def grade_rollouts(rollouts: Sequence[Rollout]) -> list[Grade | None]:
        offered = _build_trl_arguments(rollouts, conversational)
        scores = _read_trl_scores(name, function(**_filter_accepted(function, offered)), len(rollouts))
        return [
            None if score is None else replace(grade_by_final_answer(rollout), reward=score, parts={})
            for rollout, score in zip(rollouts, scores, strict=True)
        ]

    return grade_rollouts


def _build_trl_arguments(rollouts: Sequence[Rollout], conversational: bool) -> dict[str, Any]:
    """Build the arguments of a TRL reward: one value per answer in every column, data columns under their own names.

    `solution` is the data's column of that name if there is one, else the worked solution, else the answer.
    """
    columns = [_collect_columns(rollout) for rollout in rollouts]
    names = dict.fromkeys(key for row in columns for key in row)
    prompts = [rollout.problem.question if conversational else _build_prompt(rollout) for rollout in rollouts]
    texts = [rollout.text for rollout in rollouts]
    return {
        **{name: [row.get(name) for row in columns] for name in names},
        "prompts": [[{"role": "user", "content": text}] for text in prompts] if conversational else prompts,
        "completions": [[{"role": "assistant", "content": text}] for text in texts] if conversational else texts,
        "completion_ids": [list(rollout.output) for rollout in rollouts],
        "trainer_state": None,
    }


def _collect_columns(rollout: Rollout) -> dict[str, Any]:
    problem = rollout.problem
    columns = {"solution": problem.solution or problem.answer, **problem.meta}
    return {**columns, "question": problem.question, "answer": problem.answer, "ground_truth": problem.answer}


def _build_prompt(rollout: Rollout) -> str:
    return rollout.prompt_text or rollout.problem.question


def _read_trl_scores(name: str, result: Any, count: int) -> list[float | None]:
    if not hasattr(result, "__iter__"):
        raise UsageError(
            f"The reward function {name} returned {type(result).__name__}; it must return a list of numbers."
        )
    scores = list(result)
    if len(scores) != count:
        raise UsageError(f"The reward function {name} returned {len(scores)} numbers for {count} completions.")
    try:
        numbers = [None if score is None else float(score) for score in scores]
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The reward function {name} returned something other than numbers and None: {error}."
        ) from None
    # TRL uses NaN in place of None, so a function may return either.
    return [None if number is None or math.isnan(number) else number for number in numbers]
