"""Reinforcement learning and its kin: expert iteration, REINFORCE, the GRPO family. The loop is the whole step."""

from __future__ import annotations

from qed.recipes.phase import Phase
from qed.recipes.setup import Setup
from qed.rollouts import credit, gather, grade, minibatches
from qed.settings import Settings


def online(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Improve the policy on its own answers; see `Phase` for the arguments.

    Raises:
        NothingTrained: no step had a gradient.
    """
    phase = Phase(setup, settings, name, offset)
    algorithm, learner, sampler = settings.algorithm, phase.learner, setup.sampler
    stream = phase.over(setup.problems, "problems")
    for step in phase.steps():
        groups = gather(stream, sampler, setup.template, algorithm, settings.sampling, step)
        grade(groups, setup.reward)
        phase.lap("sample")
        credit(groups, algorithm)
        rows = algorithm.rows(groups)
        parts = minibatches(rows, settings.learner.batch_size)
        learner.score(parts)
        stats = [learner.update(part, step - offset - 1) for part in parts]
        sampler.load(learner.weights(), version=step)
        phase.record(step, stats, groups)
    phase.finish()
