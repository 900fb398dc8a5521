"""Preflight check before the first step: a few answers with the real prompt, sampler and reward; memory; disk space."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from statistics import fmean

import torch

from qed import host
from qed.config.reward_names import parse_reward
from qed.console.progress import say_if_slow
from qed.data.demonstrations import Demonstrations, Windows
from qed.data.prompts.demonstrations import find_trouble, is_read_by_reward, is_rewritten
from qed.data.prompts.with_reward import load_run_grader
from qed.data.splits import resolve_prompt_name, resolve_reward_names
from qed.environments.base import SINGLE
from qed.errors import QedError
from qed.guards import preflight_rules as rules
from qed.guards.preflight_rules import Answers, Finding
from qed.guards.watchdog import enter_stage
from qed.loops.memory import estimate_memory
from qed.loops.phase import Phase
from qed.models import load
from qed.models.shapes import measure_shape
from qed.randomness import shuffle_indices
from qed.rollout.agreement import compare_sampler
from qed.rollout.sampler_check import Options, require_agreement
from qed.rollout.stages import assign_grades, flatten, grade, sample
from qed.runs.run import read_lines
from qed.sampling.base import build_sampling
from qed.training.batch import collate
from qed.training.checkpoint_size import checkpoint_bytes
from qed.training.scoring import score_with
from qed.types import UNGRADED, Groups, Problem, Request, Rollout

PROBLEMS, ANSWERS = 4, 4  # sampled and graded: about 1 % of a short run's time
SLOW = 20.0  # seconds of grading before a line explains the wait
WRITTEN = 32  # written answers (demonstrations) that are checked


def run_preflight(phase: Phase, problems: Sequence[Problem], rows: Sequence[Rollout] = ()) -> None:
    """Check a phase before its first step, and print a table; in a resumed phase, check only the sampler.

    Args:
        phase: phase before its first step.
        problems: training problems of the phase.
        rows: demonstrations or pairs of an offline phase.

    Raises:
        UsageError: the run cannot work; the message says which setting to change.
    """
    settings, setup = phase.settings, phase.setup
    if not settings.run.preflight or phase.first == phase.last:
        return
    enter_stage("preflight", phase.first)
    samples = not settings.algorithm.has_scalar_head
    if samples and (settings.algorithm.online or setup.benchmarks or setup.validation):
        check_sampler(phase, problems)
    if phase.first != phase.offset:
        return
    began = time.perf_counter()
    order = shuffle_indices(len(problems), settings.run.seed, "preflight")
    groups = (
        _sample_probe(phase, [problems[number] for number in order[:PROBLEMS]]) if settings.algorithm.online else []
    )
    probed = [problems[number] for number in order[:WRITTEN]]
    demonstrations = [setup.template.demonstration(problem) for problem in probed]
    written = [rollout for rollout in demonstrations if rollout is not None]
    max_tokens, guided = settings.sampling.max_tokens, settings.algorithm.guided
    findings = [
        *_check_loss(phase, groups, rows, demonstrations),
        *rules.check_prefixes(*_count_prefixes(phase, written or flatten(groups))),
        *(_check_demonstrations(phase, probed) if rows or guided else []),
        *(_check_form(phase, probed) if groups and settings.algorithm.reads_rewards else []),
        *rules.check_window(sum(len(rollout.output) > max_tokens for rollout in written), len(written), max_tokens),
        *rules.check_schedule(settings.learner.lr, settings.learner.count_warmup_steps(), settings.learner.steps),
        *_check_memory(phase, rows or flatten(groups)),
        *_check_disk(phase),
    ]
    seconds = time.perf_counter() - began
    probe = f"{len(groups)} problems x {len(groups[0])} answers, " if groups else ""
    table = {finding.what: finding.found for finding in findings}
    warnings = [finding.advice for finding in findings if finding.advice]
    setup.run.event("preflight", phase=phase.name, seconds=round(seconds, 3), warned=warnings, **table)
    setup.console.table(f"Before {phase.name}: {probe}{seconds:.1f} s", ("", "found"), list(table.items()))
    setup.parallel.exchange(lambda: rules.refuse(findings))  # ranks may differ in free memory and disk space
    for warning in warnings:
        setup.console.say(f"Warning: {warning}")


def check_sampler(phase: Phase, problems: Sequence[Problem]) -> None:
    """Compare the sampler's log-probs with the learner's, and print and record the difference.

    A resumed run compares again, because it may be on another machine; its metrics keep the first comparison.

    Raises:
        UsageError: they differ by more than rounding explains.
    """
    settings, setup = phase.settings, phase.setup
    sampling = build_sampling(settings.sampling)
    window = load.read_window(setup.model)
    score = score_with(setup.model, sampling.temperature, phase.learner.packing)
    with setup.parallel.gather_weights(setup.model):
        check = compare_sampler(setup.sampler, score, setup.template, problems, window, sampling, settings)
    setup.run.event("sampler_check", phase=phase.name, step=phase.first, **check.fields)
    setup.console.say(check.describe())
    setup.parallel.exchange(lambda: require_agreement(check, setup.sampler, Options()))  # ranks may round differently
    if phase.first == phase.offset and not _is_recorded(phase, next(iter(check.metrics))):
        phase.metrics.pending |= check.metrics


def _is_recorded(phase: Phase, name: str) -> bool:
    """Return whether an attempt that stopped before the first step has already recorded this metric for the phase."""
    setup = phase.setup
    rows = setup.parallel.run_on_first(lambda: read_lines(setup.run.folder / "metrics.jsonl"))
    return any(name in row and row.get("phase") == phase.name and row["step"] == phase.first for row in rows)


def _sample_probe(phase: Phase, problems: Sequence[Problem]) -> Groups:
    """Sample and grade a few answers, with separate seeds so that the run's own samples do not change.

    Raises:
        QedError: the reward failed on every answer, or ran out of time.
    """
    settings, setup = phase.settings, phase.setup
    requests = [Request(problem, min(ANSWERS, settings.sampling.group_size)) for problem in problems]
    sampling = build_sampling(settings.sampling, setup.template.stop)
    address = (settings.run.seed, "preflight", phase.offset)
    groups = sample(requests, setup.sampler, setup.template, sampling, address, grader=setup.grader)
    sampled, step = sum(map(len, groups)), settings.sampling.problems_per_step * settings.sampling.group_size
    slow = (
        f"The reward has taken {SLOW:.0f} s for the preflight's {sampled} answers so far; a step has {step}. More "
        "processes (data.reward_workers) or a coroutine function grade more answers at once."
    )
    with say_if_slow(setup.console.say, slow, SLOW):
        grade(groups, setup.grader)
    grades = [rollout.grade for rollout in flatten(groups) if rollout.grade is not None]
    if grades and all(each.tier in UNGRADED for each in grades):
        raise QedError(
            f"The reward failed on all of {len(grades)} answers, first with: {grades[0].reason}. Raise "
            "data.reward_seconds if it needs more time; run.preflight=false starts the run anyway."
        )
    return groups


def _check_loss(
    phase: Phase, groups: Groups, rows: Sequence[Rollout], demonstrations: Sequence[Rollout | None]
) -> list[Finding]:
    """Check the rewards of the sampled answers, with demonstrations that join them, and the end tokens in the loss."""
    setup, algorithm = phase.setup, phase.settings.algorithm
    if not groups:
        checked = list(rows[: WRITTEN * algorithm.together])
        batch = collate(checked)
        trained = algorithm.weights(batch, phase.settings.sampling.max_tokens) * batch.mask != 0
        ends = (trained & (batch.labels == setup.template.end)).any(1)
        return rules.check_ends(int(ends.sum()), len(checked), "rows", imitated=not phase.settings.data.window)
    answers = flatten(groups)
    grades = [rollout.grade for rollout in answers if rollout.grade is not None]
    rewards = [rollout.reward for rollout in answers if rollout.has_reward]
    figures = Answers(
        truncated=fmean(rollout.stop_reason == "length" for rollout in answers),
        readable=fmean(grade.format_ok for grade in grades),
        right=fmean(grade.correct for grade in grades),
        reward=fmean(rewards) if rewards else None,
        signal=fmean(len({rollout.reward for rollout in group if rollout.has_reward}) > 1 for group in groups),
        without_reward=fmean(not grade.has_reward for grade in grades),
    )
    ended = [rollout for rollout in answers if rollout.stop_reason == "stop"]
    trained = 0
    if ended:
        batch = collate(ended)
        last = batch.attention.sum(1, keepdim=True) - 1
        trained = int(batch.mask.gather(1, last).sum())
    weights = [parse_reward(name).weight for name in resolve_reward_names(phase.settings.data)]
    joined = not figures.signal and _demonstrations_give_signal(phase, groups, demonstrations)
    turns = setup.template.environment != SINGLE
    return [
        *rules.check_answers(figures, phase.settings.sampling.max_tokens, algorithm.reads_rewards, joined, turns),
        *(rules.check_weights(weights) if algorithm.by_advantage and algorithm.reads_rewards else []),
        *rules.check_ends(trained, len(ended), "answers that ended", imitated=False),
    ]


def _demonstrations_give_signal(phase: Phase, groups: Groups, demonstrations: Sequence[Rollout | None]) -> bool:
    """Return whether a demonstration would join a group and earn a different reward than its answers."""
    guidance = getattr(phase.settings.algorithm, "demonstrations", None)
    if guidance is None or not guidance.active:
        return False
    most = phase.settings.sampling.max_tokens
    joined = [
        (group, own)
        for group, own in zip(groups, demonstrations, strict=False)
        if own is not None and len(own.output) <= most
    ]
    assign_grades([[own] for _, own in joined], phase.setup.grader)
    return any(own.has_reward and own.reward not in {each.reward for each in group} for group, own in joined)


def _check_demonstrations(phase: Phase, problems: Sequence[Problem]) -> list[Finding]:
    """Check the rewards of demonstrations of problems with an answer, and count those that the prompt rewrites.

    Skip demonstrations that the prompt builds from the answer alone.
    """
    leaf = phase.setup.template.leaf
    written = [each for each in problems if each.answer and (each.meta.get("completion") or each.solution)]
    troubles = [find_trouble(leaf, each) for each in written]
    rewritten = sum(is_rewritten(leaf, each) for each in written)
    return rules.check_demonstrations(troubles, rewritten, "run" if load_run_grader(leaf) else "prompt")


def _check_form(phase: Phase, problems: Sequence[Problem]) -> list[Finding]:
    """Check that the reward reads the prompt's tags; skipped with a custom system prompt, which may ask for others."""
    data, template = phase.settings.data, phase.setup.template
    answered = [problem for problem in problems if problem.answer][:PROBLEMS]
    if data.system_prompt or not answered:
        return []
    if any(is_read_by_reward(template.leaf, each, template.prompt(each).text) for each in answered):
        return []
    return rules.check_form(resolve_prompt_name(data), resolve_reward_names(data), template.leaf.REWARD)


def _count_prefixes(phase: Phase, answers: Sequence[Rollout]) -> tuple[int, int]:
    """Count the checked answers whose prompt tokens are a prefix of the tokens of prompt + answer, and all checked."""
    template = phase.setup.template
    same = 0
    for rollout in answers[:PROBLEMS]:
        prompt = template.prompt(rollout.problem)
        tokens = template.tokens(type(prompt)(prompt.text + rollout.text.removeprefix(prompt.opened)))
        same += tokens[: len(rollout.prompt)] == rollout.prompt
    return same, len(answers[:PROBLEMS])


def _check_memory(phase: Phase, rows: Sequence[Rollout]) -> list[Finding]:
    """Estimate the memory of the longest micro-batch and the KV cache, and compare it with the free memory."""
    if isinstance(rows, Demonstrations | Windows):
        prompt, reply = rows.longest
    else:
        prompt = max((len(rollout.prompt) for rollout in rows), default=0)
        reply = max((len(rollout.output) for rollout in rows), default=0)
    device = phase.setup.device
    training, sampling = estimate_memory(
        measure_shape(phase.setup.model),
        phase.settings,
        prompt,
        reply,
        len(rows),
        device.type,
        phase.setup.parallel.world,
    )
    # Weights and reference model are already loaded; the optimizer has no state before the first step.
    needed, sampled = (estimate.without("weights", "reference") for estimate in (training, sampling))
    return rules.check_memory(needed, sampled, _read_free_memory(device))


def _read_free_memory(device: torch.device) -> int | None:
    """Return the free bytes on the model's device; None if the system does not report them."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return host.read_memory()[1]
    except (OSError, KeyError):
        return None


def _check_disk(phase: Phase) -> list[Finding]:
    """Compare the free disk space with the size of the phase's kept checkpoints and rollouts."""
    run, sampling = phase.settings.run, phase.settings.sampling
    steps = phase.settings.learner.steps
    saves = -(-steps // run.save_every) if run.save_every else 1
    if run.keep_last:
        saves = min(saves, run.keep_last + run.keep_best)
    answers, limit = sampling.problems_per_step * sampling.group_size, sampling.max_tokens
    records = steps * limit * rules.count_token_bytes(answers, run.save_token_stats, run.save_top_logps)
    rollouts = records if run.save_rollouts and phase.settings.algorithm.online else 0
    free = shutil.disk_usage(phase.setup.run.folder).free
    return rules.check_disk(
        checkpoint_bytes(phase.setup.model, copies=int(phase.ema_reference.every > 0)), saves, rollouts, free
    )
