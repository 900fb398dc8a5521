"""Reinforcement learning and its kin: expert iteration, REINFORCE, the GRPO family. The loop is the whole step."""

from __future__ import annotations

from collections.abc import Sequence

from qed.algorithms.base import Algorithm, StepContext
from qed.config.phases import Settings
from qed.data.splits import resolve_reward_names
from qed.errors import DataError, UsageError
from qed.loops.phase import Phase
from qed.loops.preflight import run_preflight
from qed.loops.setup import Setup
from qed.rewards.base import may_judge
from qed.rollout.collector import CollectedStep, RolloutCollector
from qed.rollout.stages import assign_advantages, flatten, split_minibatches
from qed.sampling.base import Sampler, has_exact_logps
from qed.types import Problem, Rollout


def train_online(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Improve the policy on its own answers; see `Phase` for the arguments.

    Raises:
        NothingTrained: no step had a gradient.
        UsageError: the algorithm asks which answers are right, and no reward says so.
        DataError: there is no problem that the algorithm could learn from.
    """
    problems = prepare_problems(setup, settings)
    phase = Phase(setup, settings, name, offset)
    learner, sampler, timer = phase.learner, setup.sampler, setup.timer
    stream = phase.build_stream(problems, "problems")
    gatherer = RolloutCollector(
        stream,
        sampler,
        setup.template,
        setup.grader,
        settings.sampling,
        learner.compute_mean_scores,
        offset,
        timer=timer,
    )
    phase.attach_collector(gatherer)
    run_preflight(phase, problems)
    told = noted = False
    phase.begin()
    for step in phase.remaining_steps():
        phase.begin_step(step)
        algorithm = learner.algorithm
        with timer("sample"):  # and grade, which times itself: more may be sampled once some is graded
            gathered = gatherer.collect(
                algorithm, StepContext(step - offset, settings.learner.steps, settings.run.seed)
            )
        told = told or report_shortage(setup, gathered, settings.sampling.problems_per_step)
        noted = noted or record_graph_fallback(setup, sampler)
        with timer("score"):
            if algorithm.scored_before_credit:
                learner.score(flatten(gathered.groups), old=True)
            assign_advantages(gathered.groups, algorithm)
            rows = algorithm.rows(gathered.groups)
            parts = split_into_updates(rows, settings, algorithm.together, step)
            if not algorithm.scored_before_credit:
                score_old = len(parts) > 1 or needs_old_logps(algorithm, sampler)
                learner.score(rows, old=score_old, version=0 if algorithm.needs_old_logps else step - 1)
        algorithm.remember(gathered.groups, gatherer.pool, version=step - 1)
        counts = {**gathered.counts, **gatherer.pool.sizes()}
        with timer("update"):
            if algorithm.restarts_each_step and rows:
                phase.defer_signals()  # until the step has its weights
                learner.restore_initial_weights()
            stats = [phase.update(part, step) for part in parts]
        with timer("sync"):
            sampler.load(learner.weights(), version=step)
        learner.adapt(phase.record(step, stats, gathered.sampled, counts))
        phase.end_step(step)
        phase.evaluate_if_due(step)
        phase.save_if_due(step)
        phase.stop_if_asked()
    phase.finish()


def needs_old_logps(algorithm: Algorithm, sampler: Sampler) -> bool:
    """Whether the ratio must be to the learner's own log-probs even in a step's only update.

    Where the sampler's are not exact, a ratio to them would be clipped for their rounding.
    """
    return algorithm.needs_old_logps or (algorithm.has_ratio and not has_exact_logps(sampler))


def split_into_updates(rows: Sequence[Rollout], settings: Settings, together: int, step: int) -> list[list[Rollout]]:
    """Split the rows of a step into those of each of its updates, every pass in an order of its own."""
    size, seed = settings.learner.batch_size, settings.run.seed
    passes = (
        split_minibatches(rows, size, together, (seed, "minibatches", step, n)) for n in range(settings.learner.passes)
    )
    return [part for parts in passes for part in parts]


def prepare_problems(setup: Setup, settings: Settings) -> list[Problem]:
    """Return the training problems that the algorithm can learn from.

    Raises:
        UsageError: the algorithm asks which answers are right, and no reward says so.
        DataError: there is none.
    """
    require_verdicts(settings)
    problems = select_answerable(setup)
    if settings.algorithm.guided:
        report_guidance(setup, problems)
    return problems


def require_verdicts(settings: Settings) -> None:
    """Refuse rewards none of which decides correctness, where the algorithm reads it.

    Raises:
        UsageError: no reward judges.
    """
    names = resolve_reward_names(settings.data)
    if settings.algorithm.needs_correctness and not any(map(may_judge, names)):
        raise UsageError(
            f"{settings.method} learns from which answers are right, and data.reward={','.join(names)} does not say: "
            "it judges no answer. Add a reward that does, for example --reward auto,"
            f"{','.join(names)}; auto stands for the prompt's own."
        )


def report_guidance(setup: Setup, problems: Sequence[Problem]) -> None:
    """Say how many problems have a written answer, where the algorithm learns from them and some have none.

    Raises:
        DataError: none has one.
    """
    written = sum(map(setup.template.has_demonstration, problems))
    if not written:
        raise DataError(
            "No training problem has a written answer, so nobody's answers can be learned from but the policy's own. "
            "Data with a worked solution has a column such as solution, completion or (LUFFY) target; qed data "
            "inspect shows what is found in a file. Without written answers, qed dr-grpo learns from the same problems."
        )
    if written < len(problems):
        setup.console.say(
            f"{written} of {len(problems)} training problems have a written answer; the others are not guided."
        )


def report_shortage(setup: Setup, gathered: CollectedStep, wanted: int) -> bool:
    """Whether a step goes on with fewer groups than asked for; the first that does is said, all are in the metrics."""
    if len(gathered.groups) >= wanted:
        return False
    setup.run.event("too_few_groups", wanted=wanted, **gathered.counts)
    setup.console.say(
        f"Warning: after {gathered.counts['groups/rounds']:g} rounds of sampling only {len(gathered.groups)} of "
        f"{wanted} groups can teach anything, and the step goes on with these: the other problems were all solved or "
        "all failed. Easier or harder problems, or a larger algorithm.max_rounds, may help. groups/kept in the metrics "
        "counts them in every step."
    )
    return True


def record_graph_fallback(setup: Setup, sampler: Sampler) -> bool:
    """Whether the sampler cannot make graphs of its steps, or leaves long answers to the reference; that only costs
    time, so the reason is kept and not said."""
    kinds = {"sampler_without_graphs": "without_graphs", "sampler_handed_over": "handed_over_long"}
    reasons = {event: getattr(sampler, name, None) for event, name in kinds.items()}
    for event, reason in reasons.items():
        if reason is not None:
            setup.run.event(event, reason=reason)
    return any(reasons.values())


def select_answerable(setup: Setup) -> list[Problem]:
    """The training problems whose answer is known; the others, which no reward could judge, are counted and said.

    Raises:
        DataError: none has an answer.
    """
    kept = [problem for problem in setup.problems if problem.answer]
    if len(kept) < len(setup.problems):
        left_out = len(setup.problems) - len(kept)
        setup.run.event("problems_without_answer", left_out=left_out)
        setup.console.say(
            f"Left out {left_out} of {len(setup.problems)} training problems: they have no answer to reward."
        )
    if not kept:
        raise DataError(
            "No training problem has an answer, so no answer can be rewarded; qed sft can train on such data."
        )
    return kept
