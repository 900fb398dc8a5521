"""The training material of a phase: its problems, the prompt that renders them and the grader of its answers.

Phases with the same data share one material. All evaluations of a run use the material of its last phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qed.config.phases import Settings
from qed.config.settings import DataSettings
from qed.console.live import Console
from qed.data.held_out import describe_check
from qed.data.prompts.base import PromptTemplate
from qed.data.shortening import shorten_prompts
from qed.data.splits import (
    NO_PAIR,
    VALIDATION,
    LoadedProblems,
    drop_beyond_percentile,
    drop_long_prompts,
    load_problems,
    load_prompt,
    load_training_problems,
    resolve_prompt_name,
)
from qed.errors import DataError, UsageError
from qed.grading import symbolic
from qed.models import load
from qed.randomness import hash_parts
from qed.rewards.grader import Grader
from qed.rollout.curriculum import require_curriculum
from qed.rollout.grader import load_grader
from qed.rollout.policy import Policy
from qed.runs.run import Run
from qed.types import Problem


@dataclass(frozen=True, eq=False)
class Material:
    """The training problems of a phase, with the prompt and the grader of its answers."""

    problems: list[Problem]
    template: PromptTemplate
    grader: Grader


def has_own_data(phases: Sequence[Settings]) -> bool:
    """Return whether the first phase of a run has different data than the last one."""
    return _without_window(phases[0].data) != _without_window(phases[-1].data)


def _without_window(data: DataSettings) -> DataSettings:
    return replace(data, window=0)


def load_run_problems(phases: Sequence[Settings]) -> tuple[LoadedProblems, list[Problem]]:
    """Load the training and held-out problems of the last phase, and the first phase's problems if it has its own.

    Questions that are held out or in the validation part are excluded from every phase's training. Counts of left-out
    rows cover all phases.

    Raises:
        DataError: the data cannot be used, or the last phase compares pairs and there are none.
    """
    last = phases[-1]
    loaded = load_problems(last.data, last.evaluation, last.run.seed, last.imitates, last.compares)
    if last.compares and not any(problem.is_preference for problem in loaded.problems):
        raise DataError(NO_PAIR)
    symbolic.start_for(problem.answer for problem in loaded.problems)  # loads while the first answers are sampled
    if not has_own_data(phases):
        return loaded, []
    held_out = [*loaded.validation, *loaded.held_out]
    first, left_out = load_training_problems(phases[0].data, phases[0].run.seed, held_out)
    counts = {f"{reason}, in {phases[0].method}": count for reason, count in left_out.items()}
    return replace(loaded, left_out={**counts, **loaded.left_out}), first


def fit_run_problems(
    loaded: LoadedProblems, policy: Policy, settings: Settings, run: Run, console: Console
) -> LoadedProblems:
    """Return the last phase's problems whose prompts fit the model's context window and the limits in `data`.

    Prompts of problems to be answered must leave room for an answer of `sampling.max_tokens`. An offline phase itself
    leaves out replies that do not fit after their prompts.

    Raises:
        UsageError: an answer of the maximum length leaves no room for a prompt.
    """
    most, algorithm = settings.sampling.max_tokens, settings.algorithm
    samples = not algorithm.has_scalar_head
    validated = samples and any(problem.answer for problem in loaded.validation)
    limit = policy.max_prompt_tokens(most)
    if limit < 1 and (algorithm.online or validated or (samples and loaded.benchmarks)):
        raise UsageError(
            f"sampling.max_tokens={most} leaves no room for a prompt in the model's window of {limit + most} tokens. "
            "Lower sampling.max_tokens, or use a model with a longer window."
        )

    def fit(problems: list[Problem], name: str, answered: bool) -> list[Problem]:
        room = _count_prompt_tokens(policy, settings, answered)
        return drop_long_prompts(problems, policy.template, room, answered, name, run, console)

    return replace(
        loaded,
        problems=_fit_training_problems(loaded.problems, settings, policy.template, policy, run, console),
        validation=loaded.validation and fit(loaded.validation, VALIDATION, validated),
        benchmarks={name: fit(benchmark, name, samples) for name, benchmark in loaded.benchmarks.items()},
    )


def _count_prompt_tokens(policy: Policy, settings: Settings, answered: bool) -> int:
    """Return the length limit of prompts in tokens: the window, less the longest answer if `answered`."""
    return policy.max_prompt_tokens(settings.sampling.max_tokens) if answered else load.read_window(policy.model)


def _fit_training_problems(
    problems: list[Problem], settings: Settings, template: PromptTemplate, policy: Policy, run: Run, console: Console
) -> list[Problem]:
    data, online = settings.data, settings.algorithm.online
    problems = drop_beyond_percentile(problems, template, data.max_prompt_percentile, run, console)
    if data.max_prompt_tokens:
        problems = shorten_prompts(problems, template, data.max_prompt_tokens, data.truncation, run, console)
    limit = _count_prompt_tokens(policy, settings, online)
    problems = drop_long_prompts(problems, template, limit, online, "training", run, console)
    if online:
        require_curriculum(settings.sampling, problems)
    return problems


def build_materials(
    phases: Sequence[Settings],
    last: Material,
    first_problems: list[Problem],
    policy: Policy,
    run: Run,
    console: Console,
) -> list[Material]:
    """Return the material of each phase: the last phase's, except for a first phase with its own data.

    Raises:
        UsageError: the first phase's prompt needs the chat template that the last phase's prompt has replaced.
    """
    if not has_own_data(phases):
        return [last] * len(phases)
    settings = phases[0]
    leaf = load_prompt(settings.data)
    if leaf.CHAT and hasattr(policy.template.leaf, "chat_template"):
        raise UsageError(
            "The prompt of the SFT phase uses the model's chat template, which the RL phase's prompt replaces with "
            "its own. Use the same kind of prompt in both phases."
        )
    ends = load.find_end_ids(policy.model, policy.tokenizer, leaf.CHAT)
    template = PromptTemplate(leaf, policy.tokenizer, ends)
    kept = _fit_training_problems(first_problems, settings, template, policy, run, console)
    grader = load_grader(settings.data, settings.sampling.max_tokens, run.reward_log)
    return [Material(kept, template, grader), last]


def describe_data(phases: Sequence[Settings], loaded: LoadedProblems, materials: Sequence[Material]) -> dict[str, Any]:
    """Describe a run's data for its events: that of the last phase, and of the first phase if it has its own."""
    first, data = phases[0].data, phases[-1].data
    own = {"tasks": list(first.tasks), "prompt": resolve_prompt_name(first), "training": len(materials[0].problems)}
    return {
        "tasks": list(data.tasks),
        "prompt": resolve_prompt_name(data),
        "training": len(loaded.problems),
        "held_out": {name: len(benchmark) for name, benchmark in loaded.benchmarks.items()},
        "validation": len(loaded.validation),
        **({"subsets": loaded.subsets} if loaded.subsets else {}),
        "left_out": loaded.left_out,
        "held_out_check": describe_check(data.held_out_words),
        **({"first_phase": own} if has_own_data(phases) else {}),
    }


def hash_problems(problems: Sequence[Problem]) -> str:
    """Return a hash of the problems and their order."""
    lines = (
        f"{each.id} {each.question} {each.answer} {each.solution} {each.meta.get('chosen')} {each.meta.get('rejected')}"
        for each in problems
    )
    return f"{hash_parts(lines):016x}"
