"""Reinforcement learning and its kin: expert iteration, REINFORCE, the GRPO family. The loop is the whole step."""

from __future__ import annotations

from qed.algorithms.base import Moment
from qed.errors import DataError
from qed.gathering import Gathered, Gatherer
from qed.recipes.phase import Phase
from qed.recipes.setup import Setup
from qed.rollouts import credit, flat, minibatches
from qed.settings import Settings
from qed.types import Problem


def online(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Improve the policy on its own answers; see `Phase` for the arguments.

    Raises:
        NothingTrained: no step had a gradient.
    """
    phase = Phase(setup, settings, name, offset)
    learner, sampler = phase.learner, setup.sampler
    stream = phase.over(answerable(setup), "problems")
    gatherer = Gatherer(stream, sampler, setup.template, setup.grader, settings.sampling, learner.look, offset)
    phase.holding(gatherer)
    told = False
    for step in phase.steps():
        algorithm = learner.algorithm
        gathered = gatherer.gather(algorithm, Moment(step - offset, settings.learner.steps, settings.run.seed))
        told = told or tell_shortage(setup, gathered, settings.sampling.problems_per_step)
        phase.lap("sample")
        if algorithm.scored_before_credit:
            learner.score(flat(gathered.groups), old=True)
        credit(gathered.groups, algorithm)
        rows = algorithm.rows(gathered.groups)
        parts = minibatches(rows, settings.learner.batch_size, algorithm.together) * settings.learner.passes
        if not algorithm.scored_before_credit:
            version = 0 if algorithm.rescored else step - 1
            learner.score(rows, old=len(parts) > 1 or algorithm.rescored, version=version)
        algorithm.remember(gathered.groups, gatherer.pool, version=step - 1)
        counts = {**gathered.counts, **gatherer.pool.sizes()}
        if algorithm.restarts and rows:
            learner.restart()
        stats = [learner.update(part, step - offset - 1) for part in parts]
        sampler.load(learner.weights(), version=step)
        learner.adapt(phase.record(step, stats, gathered.sampled, counts))
    phase.finish()


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
