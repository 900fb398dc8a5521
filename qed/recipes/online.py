"""Reinforcement learning and its kin: expert iteration, REINFORCE, the GRPO family. The loop is the whole step."""

from __future__ import annotations

from collections.abc import Sequence

from qed.algorithms.base import Moment
from qed.errors import DataError, UsageError
from qed.gathering import Gathered, Gatherer
from qed.phases import Settings
from qed.recipes.phase import Phase
from qed.recipes.probe import preflight
from qed.recipes.problems import reward_names
from qed.recipes.setup import Setup
from qed.rewards.base import may_judge
from qed.rollouts import credit, flat, minibatches
from qed.samplers.base import Sampler, has_exact_logps
from qed.types import Problem


def online(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Improve the policy on its own answers; see `Phase` for the arguments.

    Raises:
        NothingTrained: no step had a gradient.
        UsageError: the algorithm asks which answers are right, and no reward says so.
        DataError: there is no problem that the algorithm could learn from.
    """
    require_verdicts(settings)
    problems = answerable(setup)
    if settings.algorithm.guided:
        tell_guidance(setup, problems)
    phase = Phase(setup, settings, name, offset)
    learner, sampler = phase.learner, setup.sampler
    stream = phase.over(problems, "problems")
    gatherer = Gatherer(stream, sampler, setup.template, setup.grader, settings.sampling, learner.look, offset)
    phase.holding(gatherer)
    preflight(phase, problems)
    told = noted = False
    for step in phase.steps():
        algorithm = learner.algorithm
        gathered = gatherer.gather(algorithm, Moment(step - offset, settings.learner.steps, settings.run.seed))
        told = told or tell_shortage(setup, gathered, settings.sampling.problems_per_step)
        noted = noted or note_steps(setup, sampler)
        phase.lap("sample")
        if algorithm.scored_before_credit:
            learner.score(flat(gathered.groups), old=True)
        credit(gathered.groups, algorithm)
        rows = algorithm.rows(gathered.groups)
        parts = minibatches(rows, settings.learner.batch_size, algorithm.together) * settings.learner.passes
        if not algorithm.scored_before_credit:
            version = 0 if algorithm.rescored else step - 1
            inexact = algorithm.has_ratio and not has_exact_logps(sampler)
            learner.score(rows, old=len(parts) > 1 or algorithm.rescored or inexact, version=version)
        algorithm.remember(gathered.groups, gatherer.pool, version=step - 1)
        counts = {**gathered.counts, **gatherer.pool.sizes()}
        if algorithm.restarts and rows:
            setup.stop.held = True  # until the step has its weights
            learner.restart()
        stats = [phase.update(part, step) for part in phase.updates(parts)]
        sampler.load(learner.weights(), version=step)
        learner.adapt(phase.record(step, stats, gathered.sampled, counts))
    phase.finish()


def require_verdicts(settings: Settings) -> None:
    """Refuse rewards none of which decides correctness, where the algorithm reads it.

    Raises:
        UsageError: no reward judges.
    """
    names = reward_names(settings.data)
    if settings.algorithm.judged and not any(map(may_judge, names)):
        raise UsageError(
            f"{settings.method} learns from which answers are right, and data.reward={','.join(names)} does not say: "
            "it judges no answer. Add a reward that does, for example --reward auto,"
            f"{','.join(names)}; auto stands for the prompt's own."
        )


def tell_guidance(setup: Setup, problems: Sequence[Problem]) -> None:
    """Say how many problems have a written answer, where the algorithm learns from them and some have none.

    Raises:
        DataError: none has one.
    """
    written = sum(map(setup.template.demonstrates, problems))
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


def tell_shortage(setup: Setup, gathered: Gathered, wanted: int) -> bool:
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


def note_steps(setup: Setup, sampler: Sampler) -> bool:
    """Whether the sampler cannot make graphs of its steps; that only costs time, so the reason is kept and not said."""
    reason = getattr(sampler, "without_graphs", None)
    if reason is not None:
        setup.run.event("sampler_without_graphs", reason=reason)
    return reason is not None


def answerable(setup: Setup) -> list[Problem]:
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
