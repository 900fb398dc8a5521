"""What a phase trains on: its problems, the prompt that renders them and the grader of its answers.

Phases with the same data share one material. Every evaluation of a run has the material of its last phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qed.config.phases import Settings
from qed.config.settings import DataSettings
from qed.console.live import Console
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
)
from qed.errors import DataError, UsageError
from qed.grading import symbolic
from qed.models import load
from qed.randomness import hash_parts
from qed.rewards.grader import Grader
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
    """Return whether the first of a run's phases has other data than the last one."""
    return _without_window(phases[0].data) != _without_window(phases[-1].data)


def _without_window(data: DataSettings) -> DataSettings:
    return replace(data, window=0)


def load_run_problems(phases: Sequence[Settings]) -> tuple[LoadedProblems, list[Problem]]:
    """Load the problems of a run's last phase with all held-out ones, and those of the first phase if it has its own.

    No question that is held out or in the validation part is trained on in any phase. The counts of rows that are left
    out are those of all phases.

    Raises:
        DataError: the data cannot be used; the last phase compares pairs, and there is none.
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
    """Return the problems of a run's last phase whose prompts fit the model's window and the limits of `data`.

    Problems that are answered leave room for an answer of `sampling.max_tokens`. A phase that only reads what the data
    says leaves out replies that do not fit behind their prompts itself.

    Raises:
        UsageError: the longest answer leaves no room for a prompt.
    """
    most, algorithm = settings.sampling.max_tokens, settings.algorithm
    samples = not algorithm.has_scalar_head
    validated = samples and any(problem.answer for problem in loaded.validation)
    limit = policy.max_prompt_tokens(most)
    if limit < 1 and (algorithm.online or validated or (samples and loaded.benchmarks)):
        raise UsageError(
            f"sampling.max_tokens={most} leaves no room for a prompt in the model's window of {limit + most} tokens. "
            "Use a smaller sampling.max_tokens, or a model with a longer window."
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
    """Return the longest prompt, in tokens: the window, or what the longest answer leaves of it."""
    return policy.max_prompt_tokens(settings.sampling.max_tokens) if answered else load.read_window(policy.model)


def _fit_training_problems(
    problems: list[Problem], settings: Settings, template: PromptTemplate, policy: Policy, run: Run, console: Console
) -> list[Problem]:
    data, online = settings.data, settings.algorithm.online
    problems = drop_beyond_percentile(problems, template, data.max_prompt_percentile, run, console)
    if data.max_prompt_tokens:
        problems = shorten_prompts(problems, template, data.max_prompt_tokens, data.truncation, run, console)
    limit = _count_prompt_tokens(policy, settings, online)
    return drop_long_prompts(problems, template, limit, online, "training", run, console)


def build_materials(
    phases: Sequence[Settings],
    last: Material,
    first_problems: list[Problem],
    policy: Policy,
    run: Run,
    console: Console,
) -> list[Material]:
    """Return the material of each phase: that of the last one for all, or for the first phase one of its own data.

    Raises:
        UsageError: the first phase's prompt needs the chat template that the prompt of the last phase has replaced.
    """
    if not has_own_data(phases):
        return [last] * len(phases)
    settings = phases[0]
    leaf = load_prompt(settings.data)
    if leaf.CHAT and hasattr(policy.template.leaf, "chat_template"):
        raise UsageError(
            "The prompt of the SFT phase uses the model's chat template, which that of the RL phase replaces by its "
            "own: give both phases a prompt of the same kind."
        )
    ends = load.find_end_ids(policy.model, policy.tokenizer, leaf.CHAT)
    template = PromptTemplate(leaf, policy.tokenizer, ends)
    kept = _fit_training_problems(first_problems, settings, template, policy, run, console)
    grader = load_grader(settings.data, settings.sampling.max_tokens, run.reward_log)
    return [Material(kept, template, grader), last]


def hash_problems(problems: Sequence[Problem]) -> str:
    """Return a hash of problems and their order."""
    lines = (
        f"{each.id} {each.question} {each.answer} {each.solution} {each.meta.get('chosen')} {each.meta.get('rejected')}"
        for each in problems
    )
    return f"{hash_parts(lines):016x}"
