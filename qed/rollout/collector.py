"""Gather the groups of a step: plan, sample, grade, keep, and again until the algorithm has enough.

What was sampled beyond a step's need waits for the next one. It is of an older policy then, which its `version` says
and which the log-probs that came with it correct for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from qed.algorithms.base import Algorithm, ScoreFn, StepContext
from qed.config.settings import SamplingSettings
from qed.data.prompts.base import PromptTemplate
from qed.guards.timer import StageTimer
from qed.rewards.grader import Grader
from qed.rollout.replay import ReplayBuffer, Row, decode_rollout, encode_rollout
from qed.rollout.stages import Stream, add_greedy, grade, sample
from qed.sampling.base import Sampler, Sampling
from qed.types import Group, Problem, Rollout


@dataclass
class CollectedStep:
    """The groups of a step: those that count, all that were sampled and graded for it, and for the step's record after
    how many rounds, how many the algorithm did not keep and what became of the written answers asked for."""

    groups: list[Group]
    sampled: list[Group]
    counts: dict[str, float]


@dataclass
class RolloutCollector:
    """Samples for an online phase.

    `look` is how the policy sees answers that may be recalled, `offset` the number of the run's steps before the phase.
    `surplus` holds kept groups that no step has used, `pool` answers that may be learned from again; both are part of
    every checkpoint. `timer` times grading and scoring by themselves, while the loop times the whole as sampling.
    """

    stream: Stream[Problem]
    sampler: Sampler
    template: PromptTemplate
    grader: Grader
    settings: SamplingSettings
    compute_mean_scores: ScoreFn
    offset: int = 0
    surplus: list[Group] = field(default_factory=list)
    pool: ReplayBuffer = field(default_factory=ReplayBuffer)
    timer: StageTimer = field(default_factory=StageTimer)

    def collect(self, algorithm: Algorithm, moment: StepContext) -> CollectedStep:
        """The graded groups of a step, at most as many as its problems; what is kept beyond them is surplus."""
        wanted = self.settings.problems_per_step
        before, counts = len(self.surplus), Counter[str]()
        kept, sampled, rounds = self.surplus, [], 0
        while not algorithm.enough(kept, wanted, rounds):
            fresh = self._sample(algorithm, moment, rounds, counts)
            sampled += fresh
            kept = kept + algorithm.filter_groups(fresh)
            rounds += 1
        groups, self.surplus = kept[:wanted], kept[wanted:]
        dropped = before + len(sampled) - len(kept)
        record: dict[str, float] = {"groups/rounds": rounds, "groups/kept": len(groups), "groups/dropped": dropped}
        return CollectedStep(groups, sampled, record | counts)

    def _sample(self, algorithm: Algorithm, moment: StepContext, rounds: int, counts: Counter[str]) -> list[Group]:
        wanted, size = self.settings.problems_per_step, self.settings.group_size
        requests = algorithm.recall(self.pool, wanted, size, moment, self._score) if rounds == 0 else []
        if requests:
            counts["replay/answers"] += sum(len(request.extra_completions) for request in requests)
        requests = [*requests, *algorithm.plan(self._next_problems(wanted - len(requests)), size, moment)]
        sampling = Sampling(self.settings.temperature, self.settings.max_tokens, self.template.stop)
        step = self.offset + moment.step
        # A problem that is asked again in a later round of the same step must not get the same draws.
        address = (moment.seed, "rollout", step, *((rounds,) if rounds else ()))
        groups = sample(requests, self.sampler, self.template, sampling, address, step - 1, counts)
        groups = add_greedy(groups, requests, self.sampler, self.template, sampling, version=step - 1)
        with self.timer("grade"):
            grade(groups, self.grader)
        return groups

    def _score(self, rollouts: Sequence[Rollout]) -> list[tuple[float, float]]:
        with self.timer("score"):
            return self.compute_mean_scores(rollouts)

    def _next_problems(self, count: int) -> list[Problem]:
        """The next problems of the stream that are not retired; those solved retire when an epoch has ended."""
        asked: list[Problem] = []
        while len(asked) < count:
            epoch = self.stream.position // len(self.stream.items)
            (problem,) = self.stream.take(1)
            if problem.id not in self.pool.retired:
                asked.append(problem)
            if self.stream.position // len(self.stream.items) > epoch:
                self.pool.end_epoch(len(self.stream.items), self.settings.problems_per_step)
        return asked

    def copy(self) -> RolloutCollector:
        """What it holds now, for a checkpoint of this moment that is written later."""
        return replace(self, surplus=list(self.surplus), pool=self.pool.copy())

    def rows(self) -> list[Row]:
        """What a checkpoint has to hold besides the stream's position, as rows of JSON."""
        surplus = [
            {"surplus": number, "rollout": encode_rollout(rollout)}
            for number, group in enumerate(self.surplus)
            for rollout in group
        ]
        return [*surplus, *self.pool.rows()]

    def restore(self, rows: Sequence[Row]) -> None:
        """Go on with what `rows` gave."""
        problems = {problem.id: problem for problem in self.stream.items}
        groups: dict[int, Group] = {}
        for row in rows:
            if "surplus" in row:
                groups.setdefault(row["surplus"], []).append(decode_rollout(row["rollout"], problems))
        self.surplus = list(groups.values())
        self.pool = ReplayBuffer.of(rows, problems)
