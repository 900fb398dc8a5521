"""Three kinds of reward behind one face: qed's own, verl's `compute_score`, and TRL's reward functions.

**qed**: `reward(rollout) -> Grade`, a function or an instance of a frozen dataclass whose fields are its settings.

**verl**: `compute_score(data_source, solution_str, ground_truth, extra_info=None)` returns a number, or a dict with
`score` and further numbers, which become parts. The answer is correct when `acc` is positive, or the score where there
is no `acc`; `pred`, if given, is what was extracted.

**TRL**: `f(prompts, completions, **columns) -> list[float | None]`, called once for all answers to a problem. Its score
says nothing of correctness, so `correct` is decided by qed's own grader on the text's final answer. None and NaN mean
that the function does not apply to an answer: it adds nothing, and is not logged. An answer to which no function
applies has no reward, see `qed.types.Grade`.
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

Judge = Callable[[Sequence[Rollout]], list[Grade | None]]
FORMS = (
    "reward(rollout) -> Grade",
    "compute_score(data_source, solution_str, ground_truth, extra_info=None), as in verl",
    "functions with a parameter named completions, (prompts, completions, **columns) -> list of numbers, as in TRL",
)


@dataclass(frozen=True)
class Found:
    """One reward that a file defines: its name, what grades the answers to a problem, and whether all at once."""

    name: str
    judge: Judge
    batched: bool = False


def find_functions(module: ModuleType, name: str, function: str, target: Any, conversational: bool) -> list[Found]:
    """The rewards of a module: the function of that name, or what the module defines where none is named.

    `target` is the module's attribute of that name, or its `reward`, with its settings; None where it has none.

    Raises:
        UsageError: there is none, or not the one that was named.
    """
    if function:
        return [_pick_function(module, name, function, target, conversational)]
    if callable(target) and not _accepts(target, "completions"):
        return [Found(name, _wrap_native(name, target))]
    score = getattr(module, "compute_score", None)
    if callable(score):
        return [Found(name, _wrap_verl(name, score))]
    found = [Found(one.__name__, _wrap_trl(one, conversational), True) for one in _list_trl_functions(module)]
    if not found:
        raise UsageError(f"{name} defines no reward. A file may define one of: " + "; ".join(FORMS) + ".")
    return found


def _pick_function(module: ModuleType, name: str, function: str, target: Any, conversational: bool) -> Found:
    if not callable(target):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{name} has no function '{function}'.{suggest_nearest(function, public)}")
    if _accepts(target, "completions"):
        return Found(function, _wrap_trl(target, conversational), True)
    if _accepts(target, "solution_str"):
        return Found(function, _wrap_verl(function, target))
    return Found(function, _wrap_native(function, target))


def _list_trl_functions(module: ModuleType) -> list[Callable[..., Any]]:
    """The public functions written in the module itself that take `completions`."""
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
    """Of what is offered, what the function takes by name; everything where it takes **kwargs.

    Raises:
        UsageError: it needs an argument that is not among them.
    """
    parameters = inspect.signature(function).parameters
    everything = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    named = [key for key, one in parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    missing = [key for key in named if parameters[key].default is inspect.Parameter.empty and key not in offered]
    if missing:
        name = getattr(function, "__name__", "reward")
        raise UsageError(
            f"The reward function {name} needs '{missing[0]}', which the data does not have."
            f"{suggest_nearest(missing[0], offered)} It may take: {', '.join(offered)}."
        )
    return {key: value for key, value in offered.items() if everything or key in named}


def _wrap_native(name: str, reward: Callable[[Rollout], Any]) -> Judge:
    def judge(rollouts: Sequence[Rollout]) -> list[Grade | None]:
        grades = [reward(rollout) for rollout in rollouts]
        for grade in grades:
            if not isinstance(grade, Grade):
                kind = type(grade).__name__
                raise UsageError(f"The reward {name} returned {kind}; it must return a qed.types.Grade.")
        return grades

    return judge


def _wrap_verl(name: str, score: Callable[..., Any]) -> Judge:
    def judge(rollouts: Sequence[Rollout]) -> list[Grade | None]:
        return [
            _read_verl_result(name, score(**_filter_accepted(score, _build_verl_arguments(rollout))))
            for rollout in rollouts
        ]

    return judge


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
    # Numbers of other libraries are numbers as well; a text has no __float__.
    accuracy = values.get("acc", score)
    correct = hasattr(accuracy, "__float__") and float(accuracy) > 0
    parts = {key: float(value) for key, value in values.items() if hasattr(value, "__float__")}
    extracted = None if values.get("pred") is None else str(values["pred"])
    reason = "acc > 0" if "acc" in values else "score > 0"
    return Grade(float(score), correct, True, extracted, parts, "foreign", reason if correct else f"not {reason}")


def _wrap_trl(function: Callable[..., Any], conversational: bool) -> Judge:
    name = function.__name__

    def judge(rollouts: Sequence[Rollout]) -> list[Grade | None]:
        offered = _build_trl_arguments(rollouts, conversational)
        scores = _read_trl_scores(name, function(**_filter_accepted(function, offered)), len(rollouts))
        return [
            None if score is None else replace(grade_by_final_answer(rollout), reward=score, parts={})
            for rollout, score in zip(rollouts, scores, strict=True)
        ]

    return judge


def _build_trl_arguments(rollouts: Sequence[Rollout], conversational: bool) -> dict[str, Any]:
    """One value per answer in every column, those of the data under their own names.

    `solution` is the data's own where it has such a column, else the worked solution, else the answer.
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
    own = {"solution": problem.solution or problem.answer, **problem.meta}
    return {**own, "question": problem.question, "answer": problem.answer, "ground_truth": problem.answer}


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
            f"The reward function {name} returned something else than numbers and None: {error}."
        ) from None
    # TRL writes NaN in place of None, so that a function may return either.
    return [None if number is None or math.isnan(number) else number for number in numbers]
