"""Reinforcement learning on the policy's own completions: expert iteration, REINFORCE, the GRPO family.

`train_online` is the whole RL step in one function: sample and grade, compute advantages, score, update, sync weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from qed.algorithms.base import Algorithm
from qed.config.phases import Settings
from qed.errors import DataError
from qed.loops.ahead import open_source
from qed.loops.critic import update_critic, update_policy
from qed.loops.epochs import settle_steps
from qed.loops.metrics import Stats
from qed.loops.mismatch import measure_sampler
from qed.loops.non_finite import SKIPPED
from qed.loops.phase import Phase
from qed.loops.preflight import run_preflight
from qed.loops.setup import Setup
from qed.loops.token_stats import TokenStats
from qed.models.load import read_window
from qed.rollout.collector import CollectedStep, RolloutCollector
from qed.rollout.curriculum import Curriculum
from qed.rollout.replay import ReplayBuffer
from qed.rollout.stages import assign_advantages, flatten, split_into_updates
from qed.sampling.base import Sampler, has_exact_logps, is_remote
from qed.training.batch import COUNTS
from qed.types import Problem, Rollout

NO_ANSWER = "No training problem has a reference answer for a reward. qed sft trains on solutions, qed dpo on pairs."
NO_GUIDANCE = (
    "No training problem has a written answer, so the policy can learn only from its own answers. Data with "
    "worked solutions has a column such as solution, completion or (LUFFY) target; qed data inspect shows "
    "what a file holds. Without written answers, qed dr-grpo trains on the same problems."
)
# Metrics of the extra updates that an algorithm adds to a step, and the names under which they are recorded.
EXTRA = {"train/loss": "extra/loss", "optim/grad_norm": "extra/grad_norm", "policy/entropy": "extra/entropy"}
EXTRA |= {"train/rows": "extra/rows", "train/tokens": "extra/tokens"}


def train_online(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Train the policy on its own completions; see `Phase` for the arguments.

    Raises:
        NothingTrained: no step had a gradient.
        DataError: the algorithm cannot learn from any of the problems.
    """
    problems = prepare_problems(setup, settings)
    settings = settle_steps(setup, settings, name, len(problems), settings.sampling.problems_per_step)
    phase = Phase(setup, settings, name, offset)
    learner, sampler, timer = phase.learner, setup.sampler, setup.timer
    collector = _build_collector(phase, problems)
    run_preflight(phase, problems)
    token_stats = TokenStats(phase)
    shortage_reported = fallback_recorded = False
    phase.begin()
    with open_source(phase, collector) as source:
        for step in phase.remaining_steps():
            phase.begin_step(step)
            algorithm = learner.algorithm  # `learner.adapt` may have replaced it after the previous step
            with timer(source.stage):  # dynamic sampling repeats this; grading runs inside and has its own timer
                collected = source.take(step, algorithm)
            shortage_reported = shortage_reported or report_shortage(
                setup, collected, settings.sampling.problems_per_step
            )
            fallback_recorded = fallback_recorded or record_graph_fallback(setup, sampler)
            with timer("score"):  # advantages, minibatches, log-probs of the old policy and of the reference model
                minibatches = score_step(phase, sampler, collected, step)
                token_stats.score_before(collected.sampled, minibatches)
                measured = measure_sampler(learner, sampler, collected.groups, step, token_stats.scored)
            algorithm.remember(collected.groups, collector.pool, version=step - 1)
            counts = {**collected.counts, **measured, **collected.times, **collector.pool.sizes()}
            with timer("update"):  # one optimizer step for each minibatch
                if algorithm.restarts_each_step and any(minibatches):
                    phase.defer_signals()  # until the weights are those of a complete step again
                    learner.restore_initial_weights()
                stats = update_critic(phase, collected.groups, step) + update_policy(phase, minibatches, step)
                stats += make_extra_updates(phase, collected, collector.pool, step)
                token_stats.score_after(step)
            with timer("sync"), phase.failures.hold():
                source.load(step)
            learner.adapt(phase.record(step, stats, collected.sampled, counts, collected.groups))
            source.release(step, learner.algorithm)
            phase.finish_step(step)
    phase.finish()


def score_step(phase: Phase, sampler: Sampler, collected: CollectedStep, step: int) -> list[list[Rollout]]:
    """Compute advantages and the log-probs of the old policy and of the reference model; return the minibatches."""
    learner = phase.learner
    algorithm = learner.algorithm
    if algorithm.scored_before_credit:
        learner.score(flatten(collected.groups), old=True)
    if phase.critic is not None:
        phase.critic.score(flatten(collected.groups))
    assign_advantages(collected.groups, algorithm)
    rows = algorithm.rows(collected.groups)
    address = (phase.settings.run.seed, "minibatches", step)
    minibatches = split_into_updates(rows, phase.settings.learner, algorithm.together, address)
    if not algorithm.scored_before_credit:
        in_update = takes_update_logps(algorithm, sampler, len(minibatches))
        old = not in_update and (len(minibatches) > 1 or needs_old_logps(algorithm, sampler))
        version = 0 if algorithm.needs_old_logps else step - 1
        learner.score(rows, old=old, version=version, in_update=in_update)
    return minibatches


def make_extra_updates(phase: Phase, collected: CollectedStep, pool: ReplayBuffer, step: int) -> list[Stats]:
    """Make the extra updates that the algorithm adds to a step, and return their statistics under separate names.

    Counts also keep their usual names, so that a step's counts include all of its updates.
    """
    algorithm = phase.learner.algorithm
    if type(algorithm).extra_minibatches is Algorithm.extra_minibatches:
        return []
    wanted = phase.settings.sampling.problems_per_step
    minibatches = algorithm.extra_minibatches(collected.sampled, pool, wanted)
    stats = [phase.update(minibatch, step) for minibatch in minibatches]
    named = [{EXTRA[name]: value for name, value in each.items() if name in EXTRA} for each in stats]
    counts = [{name: each[name] for name in (*COUNTS, SKIPPED) if name in each} for each in stats]
    made: Stats = {"extra/updates": len(stats), "extra/waiting": len(pool.waiting)}
    return [made, *(one | other for one, other in zip(named, counts, strict=True))]


def _build_collector(phase: Phase, problems: Sequence[Problem]) -> RolloutCollector:
    """Return the collector that samples and grades each step's groups, with its saved state if the phase resumes."""
    setup, sampling = phase.setup, phase.settings.sampling
    curriculum = Curriculum(sampling, problems, phase.settings.run.seed)
    collector = RolloutCollector(
        phase.build_stream(problems, "problems"),
        setup.sampler,
        setup.template,
        setup.grader,
        sampling,
        phase.learner.compute_mean_scores,
        phase.offset,
        curriculum=curriculum if curriculum.active else None,
        timer=setup.timer,
        window=read_window(setup.model),
        say=setup.console.say,
    )
    phase.checkpointer.restore_collector(collector)
    return collector


def needs_old_logps(algorithm: Algorithm, sampler: Sampler) -> bool:
    """Return whether the learner must recompute the old log-probs even if a step has only one update.

    If the sampler's log-probs are inexact, ratios to them would be clipped because of rounding errors.
    """
    return algorithm.needs_old_logps or (algorithm.has_ratio and not has_exact_logps(sampler))


def takes_update_logps(algorithm: Algorithm, sampler: Sampler, updates: int) -> bool:
    """Return whether the old log-probs may be the ones that a step's only update computes itself.

    Both have the same weights and micro-batches. Answers from servers are scored beforehand, because that also measures
    the servers. So are answers whose old log-probs are read elsewhere: by a correction, the advantages, other updates
    or later steps.
    """
    kind = type(algorithm)
    read_later = kind.extra_minibatches is not Algorithm.extra_minibatches or kind.remember is not Algorithm.remember
    otherwise = algorithm.scored_before_credit or algorithm.needs_old_logps or not needs_old_logps(algorithm, sampler)
    return not (otherwise or read_later or is_remote(sampler)) and updates == 1


def prepare_problems(setup: Setup, settings: Settings) -> list[Problem]:
    """Return the training problems that the algorithm can learn from.

    Raises:
        DataError: there are none.
    """
    problems = select_answerable(setup)
    if settings.algorithm.guided:
        report_guidance(setup, problems)
    return problems


def report_guidance(setup: Setup, problems: Sequence[Problem]) -> None:
    """If some problems have no written answer (a demonstration), print how many have one.

    Raises:
        DataError: no problem has one.
    """
    written = sum(map(setup.template.has_demonstration, problems))
    if not written:
        raise DataError(NO_GUIDANCE)
    if written < len(problems):
        setup.console.say(
            f"{written} of {len(problems)} training problems have a written answer; the others are not guided."
        )


def report_shortage(setup: Setup, collected: CollectedStep, wanted: int) -> bool:
    """Warn if a step has fewer groups than `wanted`, and return whether it has; see `groups/kept` in the metrics."""
    if len(collected.groups) >= wanted:
        return False
    setup.run.event("too_few_groups", wanted=wanted, **collected.counts)
    setup.console.say(
        f"Warning: after {collected.counts['groups/rounds']:g} rounds of sampling only {len(collected.groups)} of "
        f"{wanted} groups have a learning signal, and the step continues with these: the other groups were all "
        "correct or all wrong. Easier or harder problems, or a larger algorithm.max_rounds, may help. groups/kept in "
        "the metrics counts them in every step."
    )
    return True


def record_graph_fallback(setup: Setup, sampler: Sampler) -> bool:
    """Record in events.jsonl why the sampler cannot use CUDA graphs, or why it leaves long sequences to the hf sampler.

    Both only make sampling slower, so nothing is printed.

    Returns:
        Whether anything was recorded.
    """
    attributes = {"sampler_without_graphs": "without_graphs", "sampler_handed_over": "handed_over_long"}
    reasons = {event: getattr(sampler, attribute, None) for event, attribute in attributes.items()}
    for event, reason in reasons.items():
        if reason is not None:
            setup.run.event(event, reason=reason)
    return any(reasons.values())


def select_answerable(setup: Setup) -> list[Problem]:
    """Return the training problems that have a reference answer; report how many are left out for lack of one.

    Raises:
        DataError: no problem has an answer.
    """
    answerable = [problem for problem in setup.problems if problem.answer]
    if len(answerable) < len(setup.problems):
        left_out = len(setup.problems) - len(answerable)
        setup.run.event("problems_without_answer", left_out=left_out)
        setup.console.say(
            f"Left out {left_out} of {len(setup.problems)} training problems, because they have no reference answer."
        )
    if not answerable:
        raise DataError(NO_ANSWER)
    return answerable
