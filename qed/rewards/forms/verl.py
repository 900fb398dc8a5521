"""verl: `compute_score(data_source, solution_str, ground_truth, extra_info=None)` for one answer, or for many.

The score is a number, a tuple that starts with it, or a dict with `score` (in EasyR1 `overall`) and further numbers,
which become parts. The answer is correct if `acc` (in EasyR1 `accuracy`), or without it the score, is positive. `pred`,
if present, is the extracted answer. verl's own files name the answer's text `solution_str`, `model_output` or
`predict_str`, and for many answers `solution_strs`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from qed.errors import UsageError
from qed.rewards.forms.calling import (
    GradeFunction,
    Grades,
    filter_accepted,
    join_results,
    list_named,
    list_needed,
    read_later,
    read_number,
)
from qed.rewards.forms.golds import name_golds, read_gold, reads_mathematics
from qed.types import Grade, Rollout

TEXTS = ("solution_str", "model_output", "predict_str", "predict", "response", "completion", "reward_input")
SIGNS = {*TEXTS, "ground_truth", "data_source"}  # a function with one of these parameters has verl's form
MANY = {"solution_strs", "data_sources", "ground_truths", "predicts", "reward_inputs"}  # for many answers


def wrap_verl(name: str, score: Callable[..., Any]) -> GradeFunction:
    """Wrap a reward in verl's form as a function of rollouts; `name` is for messages."""
    many = bool(MANY.intersection(list_named(score)))

    def read_all(results: Any, count: int) -> Grades:
        if many:
            results = _split_results(name, results, count)
        return [read_result(name, result) for result in results]

    def grade_rollouts(rollouts: Sequence[Rollout]) -> Grades | Awaitable[Grades]:
        rows = [build_arguments(rollout, score) for rollout in rollouts]
        if many:
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            columns |= {f"{key}s": values for key, values in columns.items()}
            named = {key: values for key, values in columns.items() if key in list_named(score)}
            results = score(**filter_accepted(name, score, named))
        else:
            results = join_results([score(**filter_accepted(name, score, row)) for row in rows])
        return read_later(results, lambda found: read_all(found, len(rollouts)))

    return grade_rollouts


def build_arguments(rollout: Rollout, score: Callable[..., Any]) -> dict[str, Any]:
    """Build verl's four arguments for one answer, and other arguments that the function needs by name."""
    problem, meta, gold = rollout.problem, rollout.problem.meta, read_gold(rollout.problem)
    needed = list_needed(score)
    needed += [name.removesuffix("s") for name in needed]  # for a function of many answers
    texts: dict[str, Any] = dict.fromkeys(TEXTS, rollout.text)
    texts["reward_input"] = {"response": rollout.text, "response_length": rollout.trained_count, "ground_truth": gold}
    return {
        **({"prompt": rollout.prompt_text or problem.question} if "prompt" in needed else {}),
        **name_golds(needed, problem, reads_mathematics(score)),
        **{name: meta[name] for name in needed if name in meta},
        **{name: texts[name] for name in needed if name in texts},
        "data_source": meta.get("data_source") or meta.get("source") or "",
        "solution_str": rollout.text,
        "ground_truth": gold,
        "extra_info": dict(meta.get("extra_info") or {}),
    }


def _split_results(name: str, results: Any, count: int) -> list[Any]:
    """Return the results of a function for many answers as a list; older EasyR1 functions return a dict of lists."""
    if isinstance(results, Mapping):
        keys = list(results)
        try:
            results = [dict(zip(keys, row, strict=True)) for row in zip(*results.values(), strict=True)]
        except (TypeError, ValueError):
            raise UsageError(
                f"compute_score of {name} returned a dict for several answers whose values are not lists of one length."
            ) from None
    if not hasattr(results, "__iter__") or isinstance(results, str):
        kind = type(results).__name__
        raise UsageError(f"compute_score of {name} returned {kind} for several answers; it must return a list.")
    found = list(results)
    if len(found) != count:
        raise UsageError(f"compute_score of {name} returned {len(found)} results for {count} answers.")
    return found


def read_result(name: str, result: Any) -> Grade:
    """Read the result for one answer.

    Raises:
        UsageError: it is not a number, a tuple that starts with one, or a dict with `score`.
    """
    if isinstance(result, tuple | list) and result:
        result = result[0]
    values = dict(result) if isinstance(result, Mapping) else {"score": result}
    score = values.pop("score") if "score" in values else values.pop("overall", None)
    # NumPy and torch scalars count as numbers; a string has no __float__.
    if not hasattr(score, "__float__"):
        kind = type(result).__name__
        raise UsageError(f"compute_score of {name} returned {kind}; it must return a number, or a dict with 'score'.")
    key = next((key for key in ("acc", "accuracy") if key in values), "")
    accuracy = values[key] if key else score
    correct = hasattr(accuracy, "__float__") and float(accuracy) > 0
    numbers = {key: read_number(value) for key, value in values.items()}
    # NaN means that a part does not apply here.
    parts = {key: number for key, number in numbers.items() if number is not None and not math.isnan(number)}
    extracted = None if values.get("pred") is None else str(values["pred"])
    reason = f"{key or 'score'} > 0"
    return Grade(float(score), correct, True, extracted, parts, "foreign", reason if correct else f"not {reason}")
