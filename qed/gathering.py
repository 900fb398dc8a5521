"""Gather the groups of a step: plan, sample, grade, keep, and again until the algorithm has enough.

What was sampled beyond a step's need waits for the next one. It is of an older policy then, which its `version` says
and which the log-probs that came with it correct for.
"""

from __future__ import annotations

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
    """The groups of a step: those that count, all that were sampled and graded for it, after how many rounds, and how
    many the algorithm did not keep."""

    groups: list[Group]
    sampled: list[Group]
    rounds: int
    dropped: int

    @property
    def counts(self) -> dict[str, float]:
        """For the step's record."""
        return {"groups/rounds": self.rounds, "groups/kept": len(self.groups), "groups/dropped": self.dropped}


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
        before = len(self.surplus)
        kept, sampled, rounds = self.surplus, [], 0
        while not algorithm.enough(kept, wanted, rounds):
            fresh = self._sample(algorithm, moment, rounds)
            sampled += fresh
            kept = kept + algorithm.kept(fresh)
            rounds += 1
        groups, self.surplus = kept[:wanted], kept[wanted:]
        return Gathered(groups, sampled, rounds, dropped=before + len(sampled) - len(kept))

    def _sample(self, algorithm: Algorithm, moment: Moment, rounds: int) -> list[Group]:
        problems = self.stream.take(self.settings.problems_per_step)
        requests = algorithm.plan(problems, self.settings.group_size, moment)
        sampling = Sampling(self.settings.temperature, self.settings.max_tokens, self.template.stop)
        step = self.offset + moment.step
        # A problem that is asked again in a later round of the same step must not get the same draws.
        address = (moment.seed, "rollout", step, *((rounds,) if rounds else ()))
        groups = sample(requests, self.sampler, self.template, sampling, address, version=step - 1)
        groups = with_greedy(groups, requests, self.sampler, self.template, sampling, version=step - 1)
        grade(groups, self.grader)
        return groups
