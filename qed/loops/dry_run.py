"""Dry run: print what a run would do without loading a model: problems, lengths, steps, memory and disk."""

from __future__ import annotations

from statistics import quantiles
from typing import Any

from qed.config.phases import PipelineSettings, Settings
from qed.data.prompts.demonstrations import find_demonstration
from qed.data.splits import load_problems, load_prompt, resolve_prompt_name, resolve_reward_names
from qed.loops.warm_start import resolve_warm_start_config, resolve_warm_start_settings
from qed.models.load import SIZES, check_name, is_new
from qed.rewards.handed import explain_functions
from qed.rollout.grader import load_grader
from qed.trackers.start import require_installed

CHARACTERS_PER_TOKEN = 4  # a rule of thumb for English text and present vocabularies; printed as "about"
# An id, a log-prob and the text of a token, compressed. The built-in default task needs 2, because its answers repeat
# each other; other text compresses less.
BYTES_PER_ROLLOUT_TOKEN = 8


def run_dry(settings: Settings | PipelineSettings) -> None:
    """Resolve the settings, load the data and print what would happen; errors and exit codes are those of the run."""
    if config := resolve_warm_start_config(settings):
        resolve_warm_start_settings(settings, config)
    check_name(settings.model.name)
    require_installed(settings.run.trackers)
    grader = load_grader(settings.data, settings.sampling.max_tokens)
    phases = [settings] if isinstance(settings, Settings) else settings.phases()
    loaded = load_problems(settings.data, settings.evaluation, settings.run.seed)
    problems, benchmarks = loaded.problems, loaded.benchmarks
    prompt = load_prompt(settings.data)
    demonstrations = sum(bool(find_demonstration(prompt, problem)) for problem in problems)
    lines = [
        f"model       {settings.model.name}{_describe_size(settings.model.name)}",
        f"prompt      {resolve_prompt_name(settings.data)}, reward {' + '.join(resolve_reward_names(settings.data))}",
        f"problems    {len(problems)} to train on; "
        + (", ".join(f"{len(b)} held out ({n})" for n, b in benchmarks.items()) or "none held out"),
        f"questions   {_describe_lengths([len(problem.question) for problem in problems])}",
        f"solutions   {demonstrations} with a demonstration",
    ]
    lines += [f"left out    {count} {reason}" for reason, count in loaded.left_out.items()]
    lines += [f"reward      {line}" for line in explain_functions(grader.functions, problems)]
    for phase in phases:
        lines += _describe_phase(phase)
    print("\n".join(lines))  # noqa: T201 -- this is what the command is for


def _describe_phase(settings: Settings) -> list[str]:
    """Describe the steps of a phase and the size of its rollouts."""
    learner, sampling = settings.learner, settings.sampling
    if not settings.algorithm.online:
        unit = "pairs" if settings.algorithm.together == 2 else "demonstrations"
        count = learner.batch_size // settings.algorithm.together or "all"
        return [f"{settings.method:<11} {learner.steps} steps of {count} {unit}"]
    rollouts = sampling.problems_per_step * sampling.group_size
    size = learner.batch_size or rollouts
    disk = learner.steps * rollouts * sampling.max_tokens * BYTES_PER_ROLLOUT_TOKEN / 2**20
    return [
        f"{settings.method:<11} {learner.steps} steps of {sampling.problems_per_step} problems x "
        f"{sampling.group_size} answers "
        f"= {rollouts} rollouts, {-(-rollouts // size)} optimizer step(s) of {size}",
        f"            answers of at most {sampling.max_tokens} tokens; rollouts on disk: at most about {disk:.0f} MiB",
    ]


def _describe_size(name: str) -> str:
    """Describe the parameters of a new model, and the float32 memory of weights, gradients and optimizer state."""
    if not is_new(name):
        return ""
    size = SIZES[name.removeprefix("new:")]
    head = size.width // size.heads
    attention = size.width * head * (2 * size.heads + 2 * size.kv_heads)
    parameters = size.vocabulary * size.width + size.layers * (attention + 12 * size.width**2)
    mebibytes = 16 * parameters / 2**20
    return f": about {parameters / 1e6:.1f} M parameters, {mebibytes:.0f} MiB with gradients and optimizer state"


def _describe_lengths(lengths: list[Any]) -> str:
    if len(lengths) < 2:
        return f"{lengths[0]} characters"
    cuts = quantiles(lengths, n=100)
    return (
        f"{cuts[49]:.0f} characters in the median, {cuts[94]:.0f} at the 95th percentile, {max(lengths)} at most "
        f"(about {max(lengths) // CHARACTERS_PER_TOKEN} tokens)"
    )
