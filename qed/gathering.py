"""Gather the groups of a step: plan, sample, grade, keep, and again until the algorithm has enough.

What was sampled beyond a step's need waits for the next one. It is of an older policy then, which its `version` says
and which the log-probs that came with it correct for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from qed.algorithms.base import Algorithm, Moment
from qed.prompts.base import Template
from qed.rewards.grader import Grader
from qed.rollouts import Stream, grade, sample, with_greedy
from qed.samplers.base import Sampler, Sampling
from qed.settings import SamplingSettings
from qed.types import Group, Problem


@dataclass
class Gathered:
    """The groups of a step: those that count, all that were sampled and graded for it, and for the step's record after
    how many rounds, how many the algorithm did not keep and what became of the written answers asked for."""

    groups: list[Group]
    sampled: list[Group]
    counts: dict[str, float]


@dataclass
class Gatherer:
    """Samples for an online phase.

    `offset` is the number of the run's steps before the phase. `surplus` holds kept groups that no step has used.
    """

    stream: Stream[Problem]
    sampler: Sampler
    template: Template
    grader: Grader
    settings: SamplingSettings
    offset: int = 0
    surplus: list[Group] = field(default_factory=list)

    def gather(self, algorithm: Algorithm, moment: Moment) -> Gathered:
        """The graded groups of a step, at most as many as its problems; what is kept beyond them is surplus."""
        wanted = self.settings.problems_per_step
        before, counts = len(self.surplus), Counter[str]()
        kept, sampled, rounds = self.surplus, [], 0
        while not algorithm.enough(kept, wanted, rounds):
            fresh = self._sample(algorithm, moment, rounds, counts)
            sampled += fresh
            kept = kept + algorithm.kept(fresh)
            rounds += 1
        groups, self.surplus = kept[:wanted], kept[wanted:]
        dropped = before + len(sampled) - len(kept)
        record: dict[str, float] = {"groups/rounds": rounds, "groups/kept": len(groups), "groups/dropped": dropped}
        return Gathered(groups, sampled, record | counts)

    def _sample(self, algorithm: Algorithm, moment: Moment, rounds: int, counts: Counter[str]) -> list[Group]:
        problems = self.stream.take(self.settings.problems_per_step)
        requests = algorithm.plan(problems, self.settings.group_size, moment)
        sampling = Sampling(self.settings.temperature, self.settings.max_tokens, self.template.stop)
        step = self.offset + moment.step
        # A problem that is asked again in a later round of the same step must not get the same draws.
        address = (moment.seed, "rollout", step, *((rounds,) if rounds else ()))
        groups = sample(requests, self.sampler, self.template, sampling, address, step - 1, counts)
        groups = with_greedy(groups, requests, self.sampler, self.template, sampling, version=step - 1)
        grade(groups, self.grader)
        return groups
