"""OpenRLHF: `reward_func(queries, prompts, labels)` for many answers; a query is a prompt with its answer.

It returns a number per answer, or a dict with `rewards`, and `extra_logs` whose numbers become parts. As with TRL's
form, qed's own grader decides correctness.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qed.errors import UsageError
from qed.rewards.forms.calling import GradeFunction, Grades, check_grade, filter_accepted, read_later, read_number
from qed.rewards.forms.trl import grade_scores, read_scores
from qed.types import Rollout

# Length in characters of a text that a prompt opens, such as <think>; shorter overlaps, such as a newline, are chance.
SHORTEST_OPENED, LONGEST_OPENED = 3, 100


def wrap_openrlhf(name: str, function: Callable[..., Any]) -> GradeFunction:
    """Wrap a reward in OpenRLHF's form as a function of rollouts; `name` is for messages."""

    def grade_rollouts(rollouts: Sequence[Rollout]) -> Grades | Awaitable[Grades]:
        prompts = [_cut_opened(rollout) for rollout in rollouts]
        offered = {
            "queries": [prompt + rollout.text for prompt, rollout in zip(prompts, rollouts, strict=True)],
            "prompts": prompts,
            "labels": [rollout.problem.answer for rollout in rollouts],
        }
        result = function(**filter_accepted(name, function, offered))
        return read_later(result, lambda value: _read_result(name, value, rollouts))

    return grade_rollouts


def _cut_opened(rollout: Rollout) -> str:
    """Return the prompt without the end that the answer's text repeats, such as `<think>`."""
    prompt, text = rollout.prompt_text or rollout.problem.question, rollout.text
    lengths = range(min(len(prompt), len(text), LONGEST_OPENED), SHORTEST_OPENED - 1, -1)
    return next((prompt[:-length] for length in lengths if prompt.endswith(text[:length])), prompt)


def _read_result(name: str, result: Any, rollouts: Sequence[Rollout]) -> Grades:
    logs: Mapping[str, Any] = {}
    if isinstance(result, Mapping):
        if "rewards" not in result:
            raise UsageError(f"The reward function {name} returned a dict without 'rewards': {', '.join(result)}.")
        result, logs = result["rewards"], result.get("extra_logs") or {}
    columns = {key: _spread(value, len(rollouts)) for key, value in logs.items()}
    grades = grade_scores(rollouts, read_scores(name, result, len(rollouts)))
    parts = [{key: column[index] for key, column in columns.items() if column} for index in range(len(rollouts))]
    return [grade and check_grade(replace(grade, parts=own)) for grade, own in zip(grades, parts, strict=True)]


def _spread(value: Any, count: int) -> list[float]:
    """Return a logged value as one number per answer; empty if it is not a number."""
    # `len` of a zero-dimensional tensor raises.
    several = hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0
    values = list(value) if several and len(value) == count else [value] * count
    numbers = [number for number in map(read_number, values) if number is not None]
    return numbers if len(numbers) == count else []
