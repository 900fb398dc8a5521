"""The problems of a run: loaded, told apart into training and held-out ones, and counted where some are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from qed.config.reward_names import AUTO, parse_reward
from qed.config.settings import DataSettings, EvaluationSettings
from qed.config.task_names import parse_task
from qed.console.live import Console
from qed.data import tasks
from qed.data.prompts.base import PromptTemplate, find_demonstration
from qed.data.prompts.base import load_leaf as find_prompt
from qed.data.selection import compute_percentile_length, select_problems, split_validation
from qed.errors import DataError, UsageError
from qed.randomness import shuffle_indices
from qed.runs.run import Run
from qed.types import Problem

VALIDATION = "validation"  # as a task to evaluate: the part of the training problems that is held back
HELD_OUT_SHARE = 10  # one in so many problems, where the training data brings no test split


@dataclass(frozen=True)
class LoadedProblems:
    """The training problems, the held-out ones by the name of their task, a part of the training problems that is held
    back for validation, and how many were left out for which reason."""

    problems: list[Problem]
    benchmarks: dict[str, list[Problem]]
    validation: list[Problem]
    left_out: dict[str, int]


def load_problems(data: DataSettings, evaluation: EvaluationSettings, seed: int) -> LoadedProblems:
    """Load everything that a run asks; no held-out question is trained on.

    Raises:
        DataError: the data cannot be used, or nothing is left to train on or to measure with.
    """
    load = partial(
        tasks.load_task,
        mapping=parse_pairs(data.map, "data.map"),
        revisions=parse_pairs(data.revisions, "data.revisions"),
    )
    left_out: Counter[str] = Counter()
    training: list[Problem] = []
    benches: dict[str, list[Problem]] = {}
    for name in data.tasks:
        problems = _drop_duplicates(load(name, "train", left_out=left_out), left_out)
        training += problems
        # Preferences have no answer to measure with; a validation part of them is measured by what the policy prefers.
        if not evaluation.tasks and any(problem.answer or not problem.is_preference for problem in problems):
            held_out = (
                load(name, "test", left_out=left_out)
                if tasks.has_test_split(name)
                else _hold_out(name, problems, evaluation.problems, seed)
            )
            _add_benchmark(benches, parse_task(name).label, held_out, evaluation.problems, left_out)
    for name in evaluation.tasks:
        held_out = load(name, "test", left_out=left_out)
        _add_benchmark(benches, parse_task(name).label, held_out, evaluation.problems, left_out)
    asked = {problem.question for some in benches.values() for problem in some}
    kept = [problem for problem in training if problem.question not in asked]
    left_out["training problems that are held out"] = len(training) - len(kept)
    if not kept:
        raise DataError("No training problem is left: every one of them is among the held-out problems.")
    kept, validation = split_validation(kept, data.validation_split, evaluation.problems, seed)
    kept = select_problems(kept, data, seed, left_out)
    return LoadedProblems(kept, benches, validation, {reason: count for reason, count in left_out.items() if count})


def _drop_duplicates(problems: Sequence[Problem], left_out: Counter[str]) -> list[Problem]:
    """Each problem once; rows that stand twice are counted."""
    distinct = list({problem.id: problem for problem in problems}.values())
    left_out["rows that stand twice"] += len(problems) - len(distinct)
    return distinct


def _hold_out(name: str, problems: Sequence[Problem], most: int, seed: int) -> list[Problem]:
    """A part of a task's own training problems, where it brings no test split."""
    answered = [problem for problem in problems if problem.answer]
    order = shuffle_indices(len(answered), seed, "held out")
    count = min(most, len(answered) // HELD_OUT_SHARE)
    if count == 0:
        raise DataError(
            f"{name}: {len(answered)} problems with an answer are too few to hold some out for evaluation. "
            "Name held-out problems with --evaluation.tasks."
        )
    return [answered[index] for index in order[:count]]


def _add_benchmark(
    benchmarks: dict[str, list[Problem]], label: str, problems: Sequence[Problem], most: int, left_out: Counter[str]
) -> None:
    """Held-out problems under their task's name; what has no answer cannot be measured with, and is counted."""
    if label in benchmarks:
        raise UsageError(f"Two tasks to evaluate would both be called '{label}'; rename a file, or name one only.")
    answered = [problem for problem in problems if problem.answer]
    left_out["held-out rows without an answer"] += len(problems) - len(answered)
    if not answered:
        raise DataError(f"No held-out problem of {label} has an answer, so nothing can be measured with it.")
    # Spread over the task: the first ones would be of a single subject where it is sorted by subjects.
    count = min(most, len(answered))
    benchmarks[label] = [answered[number * len(answered) // count] for number in range(count)]


def resolve_prompt_name(data: DataSettings) -> str:
    """The prompt of a run: the one named, or the one that its first task is meant to be asked with."""
    return tasks.suggest_prompt(data.tasks[0]) if data.prompt == "auto" else data.prompt


def load_prompt(data: DataSettings) -> Any:
    """The prompt with its settings."""
    return find_prompt(resolve_prompt_name(data), data.prompt_options)


def list_training_texts(problems: Sequence[Problem], leaf: Any) -> Iterator[str]:
    """The text that a fresh tokenizer is trained on: questions and demonstrations, and a plain prompt's own words."""
    for problem in problems:
        yield problem.question if leaf.CHAT else leaf.render(problem, None)
        yield find_demonstration(leaf, problem) or problem.answer


def resolve_reward_names(data: DataSettings) -> tuple[str, ...]:
    """The parts of a run's reward: those named, with the one that fits its prompt in the place of `auto`."""
    own = load_prompt(data).REWARD
    return tuple(
        f"{text.strip().removesuffix(AUTO)}{own}" if parse_reward(text).source == AUTO else text for text in data.reward
    )


def drop_long_prompts(
    problems: list[Problem], template: PromptTemplate, limit: int, name: str, run: Run, console: Console
) -> list[Problem]:
    """The problems whose prompt leaves room for an answer in the model's window; the others are counted and said."""
    kept = [one for one, length in zip(problems, template.lengths(problems), strict=True) if length <= limit]
    if len(kept) < len(problems):
        left_out = len(problems) - len(kept)
        run.event("prompts_too_long", problems=name, left_out=left_out, limit=limit)
        console.say(
            f"Left out {left_out} of {len(problems)} {name} problems: the prompt is longer than {limit} tokens."
        )
    if not kept:
        raise DataError(
            f"No {name} problem fits: with sampling.max_tokens the model's window leaves {max(0, limit)} tokens "
            "for the prompt. Take a smaller sampling.max_tokens or a model with a longer window."
        )
    return kept


def drop_beyond_percentile(
    problems: list[Problem], template: PromptTemplate, percentile: float, run: Run, console: Console
) -> list[Problem]:
    """The training problems whose prompt is no longer than the percentile of all prompts; the others are counted."""
    if percentile == 100:
        return problems
    lengths = template.lengths(problems)
    longest = compute_percentile_length(lengths, percentile)
    kept = [problem for problem, length in zip(problems, lengths, strict=True) if length <= longest]
    left_out = len(problems) - len(kept)
    run.event("prompts_beyond_percentile", left_out=left_out, percentile=percentile, longest=longest)
    console.say(
        f"Left out {left_out} of {len(problems)} training problems: the prompt is longer than {longest} tokens, the "
        f"{percentile:g}th percentile."
    )
    return kept


def parse_pairs(entries: Sequence[str], setting: str) -> dict[str, str]:
    """Entries NAME=VALUE of a setting."""
    for entry in entries:
        name, _, value = entry.partition("=")
        if not name or not value:
            raise UsageError(f"{setting} wants NAME=VALUE, for example question=problem, not '{entry}'.")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}
