"""TRL: `f(prompts, completions, **columns) -> list[float | None]`, called once for all answers to a problem.

The score does not say whether an answer is correct, so qed's own grader decides `correct` from the final answer of the
text. None and NaN mean that the function does not apply to an answer: it adds nothing and is not logged. An answer to
which no function applies has no reward, see `qed.types.Grade`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from qed.errors import UsageError
from qed.rewards.forms.calling import GradeFunction, Grades, filter_accepted, list_named, read_later
from qed.rewards.forms.golds import choose_solution, name_golds, read_gold, reads_mathematics
from qed.rewards.verdicts import grade_by_number
from qed.types import Rollout

# The logging arguments of TRL's trainer; qed logs only the scores.
RECORDERS = ("log_extra", "log_metric")


def wrap_trl(name: str, function: Callable[..., Any], conversational: bool) -> GradeFunction:
    """Wrap a reward in TRL's form as a function of rollouts.

    Args:
        name: name of the function, for messages.
        function: the function, or an object with `__call__`.
        conversational: pass messages instead of strings.
    """

    def grade_rollouts(rollouts: Sequence[Rollout]) -> Grades | Awaitable[Grades]:
        offered = build_arguments(rollouts, function, conversational)
        result = function(**filter_accepted(name, function, offered))
        return read_later(result, lambda scores: grade_scores(rollouts, read_scores(name, scores, len(rollouts))))

    return grade_rollouts


def grade_scores(rollouts: Sequence[Rollout], scores: Sequence[float | None]) -> Grades:
    """Return grades with these rewards, and with the verdict of qed's own grader on the final answer."""
    return [
        None if score is None else grade_by_number(score, rollout)
        for rollout, score in zip(rollouts, scores, strict=True)
    ]


def build_arguments(
    rollouts: Sequence[Rollout], function: Callable[..., Any], conversational: bool
) -> dict[str, list[Any] | Any]:
    """Build the arguments of a TRL reward: one value per answer in every column, data columns under their own names."""
    columns = [_collect_columns(rollout, function) for rollout in rollouts]
    names = dict.fromkeys(key for row in columns for key in row)
    prompts = [rollout.problem.question if conversational else _read_prompt(rollout) for rollout in rollouts]
    texts = [rollout.text for rollout in rollouts]
    own = set(list_named(function))
    return {
        **{name: [row.get(name) for row in columns] for name in names},
        "prompts": [[{"role": "user", "content": text}] for text in prompts] if conversational else prompts,
        "completions": [[{"role": "assistant", "content": text}] for text in texts] if conversational else texts,
        "completion_ids": [list(rollout.output) for rollout in rollouts],
        "trainer_state": None,
        **dict.fromkeys(own.intersection(RECORDERS), _record_nothing),
    }


def _collect_columns(rollout: Rollout, function: Callable[..., Any]) -> dict[str, Any]:
    problem, boxed = rollout.problem, reads_mathematics(function)
    own = {
        "solution": choose_solution(problem, boxed),
        "question": problem.question,
        "answer": problem.answer,
        "ground_truth": read_gold(problem),
    }
    asked = [name for name in list_named(function) if name not in problem.meta and name not in own]
    return {**name_golds(asked, problem, boxed), **problem.meta, **own}


def _read_prompt(rollout: Rollout) -> str:
    return rollout.prompt_text or rollout.problem.question


def _record_nothing(name: str, value: Any) -> None:
    """Ignore what a function would log in TRL."""


def read_scores(name: str, result: Any, count: int) -> list[float | None]:
    """Read the scores of `count` answers: numbers, or None and NaN where the function does not apply.

    Raises:
        UsageError: the function returned something else.
    """
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
    # TRL converts None to NaN, so a function may return either.
    return [None if number is None or math.isnan(number) else number for number in numbers]
