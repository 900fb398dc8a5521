"""Load the problems of a run, split them into training and held-out problems, and count those that are skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qed.config.reward_names import AUTO, parse_reward
from qed.config.sampling_settings import EvaluationSettings
from qed.config.settings import DataSettings
from qed.config.task_names import parse_task
from qed.console.live import Console
from qed.data import tasks
from qed.data.changed_chat import change_chat
from qed.data.held_out import HeldOut
from qed.data.prompts.base import PromptTemplate, render_prompt
from qed.data.prompts.base import load_leaf as find_prompt
from qed.data.prompts.demonstrations import find_demonstration
from qed.data.prompts.in_environment import PromptInEnvironment
from qed.data.prompts.with_reward import add_reward, list_shared_options
from qed.data.selection import (
    HELD_OUT_SHARE,
    compute_percentile_length,
    hold_out,
    keep_measured,
    select_problems,
    split_validation,
)
from qed.data.sources.schemas import OptionalMapping
from qed.data.subsets import draw_subset
from qed.data.tasks.base import number_copies
from qed.environments.base import SINGLE, load_environment
from qed.errors import DataError, UsageError
from qed.runs.run import Run
from qed.types import Problem

VALIDATION = "validation"  # the task name of the validation part in evaluations
SUBSET_SEED = 0  # seed that draws the evaluated held-out problems, so that runs with other seeds use the same ones
NO_PAIR = (
    "There is no preference pair to learn from: the training data needs rows with a prompt, and with a chosen and a "
    "rejected reply that fit the model, as in the columns prompt, chosen and rejected. From problems with answers, qed "
    "online-dpo builds its own pairs."
)


@dataclass(frozen=True)
class LoadedProblems:
    """The training problems, the held-out problems by task, the validation problems, and the counts of skipped ones.

    `subsets` describes how a subset was drawn, by task, including the validation part. `held_out` holds all problems of
    the tasks to evaluate, drawn or not.
    """

    problems: list[Problem]
    benchmarks: dict[str, list[Problem]]
    validation: list[Problem]
    left_out: dict[str, int]
    subsets: dict[str, str] = field(default_factory=dict)
    held_out: list[Problem] = field(default_factory=list)


def load_problems(
    data: DataSettings, evaluation: EvaluationSettings, seed: int, imitates: bool = False, compares: bool = False
) -> LoadedProblems:
    """Load all problems of a run; no held-out question is trained on, even if the evaluated subset leaves it out.

    Args:
        data: names the training tasks.
        evaluation: names the held-out tasks.
        seed: seed of the run.
        imitates: whether the run only imitates demonstrations (SFT). Data without answers, such as conversations, then
            needs no benchmark: rows held out of it are validation problems, whose loss is measured.
        compares: whether the run compares the replies of pairs (DPO), which needs no benchmark either.

    Raises:
        DataError: the data cannot be used, or no problem is left for training or evaluation.
    """
    left_out: Counter[str] = Counter()
    load = _build_loader(data, left_out)
    training: list[Problem] = []
    benches: dict[str, list[Problem]] = {}
    subsets: dict[str, str] = {}
    drawn = evaluation.problems, SUBSET_SEED
    unanswered: list[Problem] = []
    all_held_out: list[Problem] = []
    for name in data.tasks:
        problems = _drop_duplicates(load(name, "train"), left_out)
        training += problems
        if not evaluation.tasks and _needs_benchmark(problems, imitates or compares):
            held_out = _load_test_split(name, load, left_out)
            held_out = held_out or hold_out(name, problems, evaluation.problems, seed, imitates or compares)
            all_held_out += held_out
            subsets |= _add_benchmark(benches, parse_task(name).label, held_out, drawn, left_out)
    for name in evaluation.tasks:
        held_out = load(name, "test", evaluated=True)
        all_held_out += held_out
        if imitates and not any(problem.answer for problem in held_out):
            unanswered += draw_subset(held_out, *drawn)[0]
        else:
            subsets |= _add_benchmark(benches, parse_task(name).label, held_out, drawn, left_out)
    kept = _drop_held_out(training, HeldOut(all_held_out, data.held_out_words), left_out)
    share = data.validation_split
    if imitates and not benches and not unanswered and len(kept) >= HELD_OUT_SHARE:
        share = share or 1 / HELD_OUT_SHARE
    kept, drawn_rows, subset = split_validation(kept, share, evaluation.problems, seed, imitates)
    validation = keep_measured(drawn_rows, imitates, left_out)
    subsets |= {VALIDATION: subset} if subset else {}
    if validation and data.held_out_words:
        kept = _drop_held_out(kept, HeldOut(validation, data.held_out_words), left_out)
    kept = select_problems(kept, data, seed, left_out)
    return LoadedProblems(kept, benches, unanswered + validation, +left_out, subsets, all_held_out)


def load_training_problems(
    data: DataSettings, seed: int, held_out: Iterable[Problem]
) -> tuple[list[Problem], Counter[str]]:
    """Load the training problems of a phase that has its own data.

    Args:
        data: settings of the phase.
        seed: seed of the run.
        held_out: the problems whose questions no phase trains on.

    Returns:
        the problems, and the counts of skipped ones by reason.
    """
    left_out: Counter[str] = Counter()
    load = _build_loader(data, left_out)
    training = [problem for name in data.tasks for problem in _drop_duplicates(load(name, "train"), left_out)]
    kept = _drop_held_out(training, HeldOut(held_out, data.held_out_words), left_out)
    return select_problems(kept, data, seed, left_out), +left_out


def _build_loader(data: DataSettings, left_out: Counter[str]) -> Callable[..., list[Problem]]:
    """Return a function that loads a task by name and split, with the columns and revisions of the settings."""
    revisions = parse_pairs(data.revisions, "data.revisions")

    def load(name: str, split: str, evaluated: bool = False) -> list[Problem]:
        return tasks.load_task(name, split, choose_columns(data.map, name, evaluated), left_out, revisions)

    return load


def _needs_benchmark(problems: Sequence[Problem], offline: bool) -> bool:
    """Return whether a training task needs held-out problems to evaluate; `offline` if the run samples nothing.

    Preferences have no answer to evaluate; their validation part measures the policy's preferences.
    """
    answered = any(problem.answer for problem in problems)
    return answered or not (offline or all(problem.is_preference for problem in problems))


def _drop_held_out(problems: Sequence[Problem], held_out: HeldOut, left_out: Counter[str]) -> list[Problem]:
    """Return the problems whose question is not held out, and count the others."""
    kept = held_out.drop(problems, left_out)
    if not kept:
        raise DataError("No training problem is left: all of them are held-out problems.")
    return kept


def _drop_duplicates(problems: Sequence[Problem], left_out: Counter[str]) -> list[Problem]:
    """Return each problem once, and count duplicate rows."""
    distinct = list({problem.id: problem for problem in problems}.values())
    left_out["duplicate rows"] += len(problems) - len(distinct)
    return distinct


def _load_test_split(name: str, load: Callable[..., list[Problem]], left_out: Counter[str]) -> list[Problem]:
    """Load the test split of a task; empty if it has none, or if that of user data cannot be evaluated."""
    if not tasks.has_test_split(name):
        return []
    own = bool(parse_task(name).path)
    try:
        problems = load(name, "test")
    except DataError as error:
        if not own:
            raise
        left_out[f"test split, which is not evaluated: {error}"] += 1
        return []
    if own and not any(problem.answer for problem in problems):
        left_out["held-out rows without an answer"] += len(problems)
        return []
    return problems


def _add_benchmark(
    benchmarks: dict[str, list[Problem]],
    label: str,
    problems: Sequence[Problem],
    drawn: tuple[int, int],
    left_out: Counter[str],
) -> dict[str, str]:
    """Add held-out problems under their task's name, skipping and counting those without an answer.

    At most `drawn[0]` problems are added, drawn with seed `drawn[1]`.

    Returns:
        the description of the subset under the task's name, if not all problems are used.
    """
    limit, seed = drawn
    if label in benchmarks:
        raise UsageError(f"Two tasks to evaluate would both be called '{label}'; rename a file, or name one only.")
    answered = [problem for problem in number_copies(problems) if problem.answer]
    left_out["held-out rows without an answer"] += len(problems) - len(answered)
    if not problems:
        return {}
    if not answered:
        raise DataError(
            f"No held-out problem of {label} has an answer, so it cannot be evaluated. "
            "Name other problems with --evaluation.tasks."
        )
    benchmarks[label], subset = draw_subset(answered, limit, seed)
    return {label: subset} if subset else {}


def resolve_prompt_name(data: DataSettings) -> str:
    """Return the name of a run's prompt: the configured one, or the default of its first task."""
    return tasks.suggest_prompt(data.tasks[0]) if data.prompt == "auto" else data.prompt


def load_prompt(data: DataSettings) -> Any:
    """Load the prompt of a run with its options, system message, chat template options, environment and reward.

    Raises:
        UsageError: one of them does not exist, or has no such option.
    """
    name = resolve_prompt_name(data)
    leaf = find_prompt(name, data.prompt_options)
    leaf = change_chat(leaf, name, data.system_prompt, data.chat_template_options)
    environment = load_environment(data.environment, data.environment_options)
    leaf = leaf if environment == SINGLE else PromptInEnvironment(leaf, environment)
    names = _name_rewards(data, leaf.REWARD)
    return add_reward(leaf, names, data.reward_options, list_shared_options(data.prompt_options, names))


def list_training_texts(problems: Sequence[Problem], leaf: Any) -> Iterator[str]:
    """Yield the texts to train a new tokenizer on: questions or plain prompts, and demonstrations."""
    for problem in problems:
        yield problem.question if leaf.CHAT else render_prompt(leaf, problem, None)
        yield find_demonstration(leaf, problem) or problem.answer


def resolve_reward_names(data: DataSettings) -> tuple[str, ...]:
    """Return the parts of a run's reward, with `auto` replaced by the default reward of its prompt."""
    return _name_rewards(data, load_prompt(data).REWARD)


def _name_rewards(data: DataSettings, default: str) -> tuple[str, ...]:
    return tuple(
        f"{text.strip().removesuffix(AUTO)}{default}" if parse_reward(text).source == AUTO else text
        for text in data.reward
    )


def drop_long_prompts(
    problems: list[Problem],
    template: PromptTemplate,
    limit: int,
    answered: bool,
    name: str,
    run: Run,
    console: Console,
) -> list[Problem]:
    """Return the problems whose prompt has at most `limit` tokens; count and report the others.

    If the model answers them (`answered`), the limit is what the longest answer leaves of the context window.

    Raises:
        DataError: no problem is left.
    """
    fitting = template.check_lengths(problems, limit)
    kept = [problem for problem, fits in zip(problems, fitting, strict=True) if fits]
    if len(kept) < len(problems):
        left_out = len(problems) - len(kept)
        run.event("prompts_too_long", problems=name, left_out=left_out, limit=limit)
        window = "which is what sampling.max_tokens leaves of the model's window" if answered else "the model's window"
        console.say(
            f"Left out {left_out} of {len(problems)} {name} problems: the prompt is longer than {limit} tokens, "
            f"{window}."
        )
    if not kept:
        leaves = "with sampling.max_tokens the model's window leaves" if answered else "the model's window has"
        smaller = "a smaller sampling.max_tokens or " if answered else ""
        raise DataError(
            f"No {name} problem fits: {leaves} {limit} tokens for the prompt. Use {smaller}a model with a longer "
            "window."
        )
    return kept


def drop_beyond_percentile(
    problems: list[Problem], template: PromptTemplate, percentile: float, run: Run, console: Console
) -> list[Problem]:
    """Return the training problems whose prompt is within the length percentile, and report the others."""
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


def choose_columns(entries: Sequence[str], name: str, evaluated: bool = False) -> dict[str, str]:
    """Return the columns to rename for a task: those that `data.map` gives for it, else those for all tasks.

    Args:
        entries: OURS=THEIRS, or TASK?OURS=THEIRS&OURS=THEIRS for one task.
        name: the task.
        evaluated: whether the task is only evaluated; it then need not have the columns for all tasks.
    """
    asked = replace(parse_task(name), columns={})
    own = [task for task in map(parse_task, filter(_names_task, entries)) if task.label == asked.label]
    own = [task for task in own if replace(task, columns={}) == asked] or own  # files in two folders may share a label
    if any(task.columns != own[0].columns for task in own):
        raise UsageError(
            f"data.map has two entries for {asked.label}; join them: TASK?OURS=THEIRS&OURS=THEIRS, with TASK as named "
            "elsewhere."
        )
    if own:
        return dict(own[0].columns)
    pairs = parse_pairs([entry for entry in entries if not _names_task(entry)], "data.map")
    return OptionalMapping(pairs) if evaluated else pairs


def _names_task(entry: str) -> bool:
    return "?" in entry.partition("=")[0]


def parse_pairs(entries: Sequence[str], setting: str) -> dict[str, str]:
    """Parse the NAME=VALUE entries of a setting."""
    pairs: dict[str, str] = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        if not name or not value:
            raise UsageError(f"{setting} must be NAME=VALUE, for example question=problem, not '{entry}'.")
        if pairs.get(name, value) != value:
            raise UsageError(f"{setting} names {name} twice: {name}={pairs[name]} and {entry}. Remove one of them.")
        pairs[name] = value
    return pairs
