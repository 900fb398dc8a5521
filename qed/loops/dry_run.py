"""Dry run: without loading weights, print a run's model, problems, lengths, steps, memory and disk space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from qed.config.changes import list_changes
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import DEFAULT
from qed.config.unread import describe_unread
from qed.data.prompts.base import PromptTemplate
from qed.data.prompts.demonstrations import find_demonstration
from qed.data.splits import VALIDATION, load_prompt, resolve_prompt_name, resolve_reward_names
from qed.errors import DataError
from qed.guards.preflight_rules import count_token_bytes
from qed.loops.device_fit import preview_device_defaults
from qed.loops.epochs import count_steps
from qed.loops.material import has_own_data, load_run_problems
from qed.loops.memory import estimate_memory
from qed.loops.named_models import require_named_models
from qed.loops.online import NO_ANSWER, NO_GUIDANCE
from qed.loops.resume import list_phases, require_allowed
from qed.loops.sft import NO_DEMONSTRATION
from qed.loops.supported import require_supported, require_verdicts
from qed.loops.warm_start import resolve_warm_start_config, resolve_warm_start_settings
from qed.models import lora
from qed.models.load import check_name, find_end_ids, is_new, load_outline, pick_device, read_window
from qed.models.shapes import find_shape, measure_shape
from qed.rewards.grader import Grader
from qed.rewards.handed import explain_functions
from qed.rollout.curriculum import require_curriculum
from qed.rollout.grader import load_grader
from qed.runs.folder import require_free, require_run
from qed.runs.manifest import list_checkpoints
from qed.runs.run import Launch
from qed.trackers.start import require_installed
from qed.training.parallel import Parallel
from qed.types import Problem

CHARACTERS_PER_TOKEN = 4  # a rule of thumb for English text and present vocabularies; printed as "about"
GIB = 2**30  # bytes


@dataclass(frozen=True)
class Outline:
    """A model without weights, on the meta device, and its tokenizer."""

    model: Any
    tokenizer: Any


def run_dry(settings: Settings | PipelineSettings, launch: Launch | None = None, ranks: int = 1) -> None:
    """Check the settings, load the data and print what a run would do; errors and exit codes are those of a run.

    Memory is given for each of the `ranks`. With a `launch`, also check the run's folder, and print the defaults that
    a run would choose for the device.
    """
    config, origins = resolve_warm_start_config(settings), launch.origins if launch else None
    folder = _check_folder(settings, launch, bool(config)) if launch and settings.run.out else []
    if config:
        resolve_warm_start_settings(settings, config)
    check_name(settings.model.name)
    require_installed(settings.run.trackers)
    phases = list_phases(settings)
    require_supported(phases, Parallel(world=ranks, settings=settings.parallel))
    for phase in phases:
        require_verdicts(phase)
    graders = [load_grader(phase.data, settings.sampling.max_tokens) for phase in phases]
    loaded, first = load_run_problems(phases)
    held_out = [f"{len(some)} held out ({name})" for name, some in loaded.benchmarks.items()]
    drawn = f" ({loaded.subsets[VALIDATION]})" if VALIDATION in loaded.subsets else ""
    held_out += [f"{len(loaded.validation)} for validation{drawn}"] if loaded.validation else []
    outline = None if config or is_new(settings.model.name) else _outline_model(phases[-1])
    require_named_models(phases, outline.tokenizer if outline else None)
    lines = [f"model       {settings.model.name}{_describe_model(settings.model.name, outline)}"]
    lines += [*folder, f"held out    {', '.join(held_out) or 'none'}"]
    lines += [f"left out    {count} {reason}" for reason, count in loaded.left_out.items()]
    problems = [loaded.problems] * len(phases)
    if has_own_data(phases):
        problems[0] = first
    for number, phase in enumerate(phases):
        if number == 0 or has_own_data(phases):
            written = _measure_demonstrations(phase, problems[number])
            lines += _describe_problems(phase, problems[number], graders[number], sum(map(bool, written)))
        lines += _describe_phase(phase, problems[number])
        lines += _describe_tokens(phase, problems[number], outline, ranks, max(written)) if outline else []
    lines += [f"no effect   {line}" for line in describe_unread(settings, origins or {})]
    lines += preview_device_defaults(settings, origins, pick_device(settings.model.device)) if origins else []
    print("\n".join(lines))  # noqa: T201 -- this is what the command is for


def _check_folder(settings: Settings | PipelineSettings, launch: Launch, warm: bool) -> list[str]:
    """Require that a run with these settings can begin in its folder, or be resumed there; change nothing in it.

    A `warm` start replaces the model's name by that of the model that it trains.

    Returns:
        a line that says where a resumed run continues; none for a new run.
    """
    folder = Path(settings.run.out)
    if not launch.resume:
        require_free(folder, launch)
        return []
    require_run(str(folder))
    if not (folder / "settings.yaml").is_file():  # a run that was about to be replaced, which resuming restores
        return []
    # Defaults for the device are chosen when the run is resumed.
    left_out = {key for key, origin in launch.origins.items() if origin.startswith(DEFAULT)}
    left_out |= {"model.name"} if warm else set()
    refused = list_changes(folder / "settings.yaml", settings, launch.allow_change)[1]
    require_allowed(folder, [text for text in refused if text.partition(":")[0] not in left_out])
    newest = next(iter(list_checkpoints(folder)), None)
    return [] if newest is None else [f"resumes     after step {newest}, if its checkpoint is complete"]


def _outline_model(settings: Settings) -> Outline:
    model, tokenizer = load_outline(settings.model)
    leaf = load_prompt(settings.data)
    if hasattr(leaf, "chat_template"):
        tokenizer.chat_template = leaf.chat_template
    return Outline(lora.add_adapters(model, settings.model, 0) if settings.model.lora_rank else model, tokenizer)


def _describe_model(name: str, outline: Outline | None) -> str:
    """Describe a model's size; for a new one, also the float32 memory that training takes without activations."""
    if outline is not None:
        shape, template = measure_shape(outline.model), outline.tokenizer.chat_template
        trained = "" if shape.trained == shape.weights else f", {shape.trained / 1e6:.1f} M of them trained"
        return (
            f": {shape.weights / 1e6:.1f} M parameters{trained}, a window of {read_window(outline.model)} tokens, "
            f"{'a' if template else 'no'} chat template"
        )
    if not is_new(name):
        return ""
    parameters = find_shape(name)[1].weights
    mebibytes = 16 * parameters / 2**20
    return f": about {parameters / 1e6:.1f} M parameters, {mebibytes:.0f} MiB with gradients and optimizer state"


def _measure_demonstrations(settings: Settings, problems: Sequence[Problem]) -> list[int]:
    """Return the length of each problem's demonstration in characters; 0 without one."""
    prompt = load_prompt(settings.data)
    return [len(find_demonstration(prompt, problem) or "") for problem in problems]


def _describe_problems(
    settings: Settings, problems: Sequence[Problem], grader: Grader, demonstrations: int
) -> list[str]:
    """Describe the problems of a phase, its prompt and its reward."""
    data, algorithm = settings.data, settings.algorithm
    pairs = sum(problem.is_preference for problem in problems)
    if settings.imitates and not demonstrations:
        raise DataError(NO_DEMONSTRATION)
    if algorithm.online and not any(problem.answer for problem in problems):
        raise DataError(NO_ANSWER)
    if algorithm.guided and not demonstrations:
        raise DataError(NO_GUIDANCE)
    if algorithm.online:
        require_curriculum(settings.sampling, problems)
    return [
        f"prompt      {resolve_prompt_name(data)}, reward {' + '.join(resolve_reward_names(data))}",
        f"problems    {len(problems)} to train on",
        f"questions   {_describe_lengths([len(problem.question) for problem in problems])}",
        f"pairs       {pairs} with a chosen and a rejected reply"
        if pairs
        else f"solutions   {demonstrations} with a demonstration",
        *(f"reward      {line}" for line in explain_functions(grader.functions, problems)),
    ]


def _describe_tokens(
    settings: Settings, problems: Sequence[Problem], outline: Outline, ranks: int, longest_reply: int
) -> list[str]:
    """Describe a phase's prompts in tokens, and estimate its peak memory; `longest_reply` is in characters."""
    prompt = load_prompt(settings.data)
    template = PromptTemplate(prompt, outline.tokenizer, find_end_ids(outline.model, outline.tokenizer, prompt.CHAT))
    answer = settings.sampling.max_tokens if settings.algorithm.online else 0
    lengths, limit = template.lengths(problems), read_window(outline.model) - answer
    longest = max(0, min(max(lengths), settings.data.max_prompt_tokens or limit, limit))
    reply = longest_reply // CHARACTERS_PER_TOKEN
    shape, device = measure_shape(outline.model), pick_device(settings.model.device).type
    training, sampling = estimate_memory(shape, settings, longest, reply, len(problems), device, ranks)
    weights = training.parts["weights"]
    each = " of each rank" if ranks > 1 else ""
    beyond = sum(length > limit for length in lengths)
    why = "leave no room for an answer in" if answer else "are longer than"
    return [
        *_describe_limit(settings, lengths),
        f"            prompts of at most {max(lengths)} tokens; {beyond} {why} the window",
        f"            memory{each}: about {max(training.total, sampling.total) / GIB:.2f} GiB at worst: weights "
        f"{weights / GIB:.2f}, and to train {(training.total - weights) / GIB:.2f}, or to sample "
        f"{(sampling.total - weights) / GIB:.2f}",
    ]


def _describe_limit(settings: Settings, lengths: Sequence[int]) -> list[str]:
    """Describe what happens to prompts longer than `data.max_prompt_tokens`."""
    most, side = settings.data.max_prompt_tokens, settings.data.truncation
    above = sum(length > most for length in lengths) if most else 0
    fate = "left out" if side == "drop" else f"cut on the {side}"
    return [f"            {above} of {len(lengths)} prompts are above {most} tokens: {fate}"] if above else []


def _describe_phase(settings: Settings, problems: Sequence[Problem]) -> list[str]:
    """Describe the steps of a phase and the size of its rollouts."""
    learner, sampling, run = settings.learner, settings.sampling, settings.run
    online, together = settings.algorithm.online, settings.algorithm.together
    unanswered = sum(not problem.answer for problem in problems) if online else 0
    left = len(problems) - unanswered
    units = -(-learner.batch_size // together)
    per_step = sampling.problems_per_step if online else units or left
    # Rows too long for the model are left out later.
    steps = count_steps(learner.epochs, left, per_step) if learner.epochs else learner.steps
    count = f"{'at most ' * bool(learner.epochs)}{steps} steps"
    if not online:
        unit = "pairs" if together == 2 else "demonstrations"
        return [f"{settings.method:<11} {count} of {units or 'all'} {unit}"]
    rollouts = sampling.problems_per_step * sampling.group_size
    size = learner.batch_size or rollouts
    records = steps * sampling.max_tokens * count_token_bytes(rollouts, run.save_token_stats, run.save_top_logps)
    disk = f"; rollouts on disk: at most about {records / 2**20:.0f} MiB" if run.save_rollouts else ""
    return [
        f"{settings.method:<11} {count} of {sampling.problems_per_step} problems x "
        f"{sampling.group_size} answers "
        f"= {rollouts} rollouts, {-(-rollouts // size)} optimizer step(s) of {size}",
        f"            answers of at most {sampling.max_tokens} tokens{disk}",
        *([f"            {unanswered} problems have no answer to reward, and are left out"] if unanswered else []),
    ]


def _describe_lengths(lengths: list[Any]) -> str:
    if len(lengths) < 2:
        return f"{lengths[0]} characters"
    cuts = quantiles(lengths, n=100, method="inclusive")
    return (
        f"{cuts[49]:.0f} characters in the median, {cuts[94]:.0f} at the 95th percentile, {max(lengths)} at most "
        f"(about {max(lengths) // CHARACTERS_PER_TOKEN} tokens)"
    )
