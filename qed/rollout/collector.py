"""Collects the groups of a step: plan, sample, grade and filter, in rounds until the algorithm has enough groups.

Groups beyond a step's need are used by the next step. They are then off-policy: `version` names the policy that sampled
them, and their recorded log-probs correct for that. The same holds for steps that `qed.rollout.ahead` samples in
advance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from qed.algorithms.base import Algorithm, ScoreFn, StepContext
from qed.config.sampling_settings import SamplingSettings
from qed.data.prompts.base import PromptTemplate
from qed.guards.timer import StageTimer
from qed.rewards.grader import Grader
from qed.rollout.curriculum import Curriculum
from qed.rollout.replay import ReplayBuffer, Row, decode_rollout, encode_rollout
from qed.rollout.stages import RequestBatch, Stream, add_greedy, ask_greedily, grade, sample_batches
from qed.rollout.teacher_prompts import show_demonstrations
from qed.sampling.base import Sampler, build_sampling
from qed.types import Group, Problem, Rollout

SAID_ROUNDS = tuple(10**power for power in range(1, 10))  # number of rounds after which progress is printed


@dataclass
class CollectedStep:
    """The groups of a step: `groups` to train on, `sampled` all that were sampled and graded, `counts` for the metrics.

    `counts` holds the number of rounds, the groups kept and dropped, and how demonstrations were used; `times` the
    seconds of the thread that sampled the step ahead, which are not saved in checkpoints.
    """

    groups: list[Group]
    sampled: list[Group]
    counts: dict[str, float]
    times: dict[str, float] = field(default_factory=dict)


@dataclass
class RolloutCollector:
    """Samples for an online phase.

    `compute_mean_scores` returns the policy's mean entropy and log-prob of answers that may be replayed. `offset` is
    the number of the run's steps before the phase. `timer` times grading and scoring separately from sampling. `window`
    is the longest sequence that the learner's model can read, in tokens. `say` prints progress if a step needs many
    rounds.

    These are part of every checkpoint: `surplus`, filtered groups that no step has used yet; `pool`, the replay buffer;
    `ahead`, the steps sampled ahead when the run was saved, by their number; and `curriculum`, which chooses the
    problems unless it is None.
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
    ahead: dict[int, CollectedStep] = field(default_factory=dict)
    curriculum: Curriculum | None = None
    window: int = 1 << 30
    say: Callable[[str], None] | None = None

    @property
    def position(self) -> int:
        """The number of problems that have been taken from the stream."""
        return self.stream.position

    def collect(self, algorithm: Algorithm, context: StepContext, version: int | None = None) -> CollectedStep:
        """Sample and grade the groups of a step; excess groups become surplus for the next step.

        A step has at most `problems_per_step` groups, or as many as the algorithm plans for that many problems. A step
        that was sampled before the run was saved is returned unchanged.

        Args:
            algorithm: algorithm of the sampling policy.
            context: context of the step.
            version: version of the sampling policy; by default that of the previous step.
        """
        number = self.offset + context.step
        if number in self.ahead:
            return self.ahead.pop(number)
        version = number - 1 if version is None else version
        wanted = self.settings.problems_per_step
        surplus, counts = len(self.surplus), Counter[str]()
        accepted, sampled, rounds, most = self.surplus, list[Group](), 0, wanted
        while not algorithm.enough(accepted, wanted, rounds):
            asked = {group[0].problem.id for group in sampled}
            fresh = self._sample_round(algorithm, context, version, rounds, counts, asked)
            sampled += fresh
            accepted = accepted + algorithm.filter_groups(fresh)
            rounds, most = rounds + 1, max(most, len(fresh))
            if rounds in SAID_ROUNDS and self.say is not None:
                self.say(
                    f"Step {number} has sampled {rounds} rounds, {len(sampled)} groups, of which {len(accepted)} are "
                    f"kept: {type(algorithm).__name__}.enough asks for more."
                )
        groups, self.surplus = accepted[:most], accepted[most:]
        dropped = surplus + len(sampled) - len(accepted)
        record: dict[str, float] = {"groups/rounds": rounds, "groups/kept": len(groups), "groups/dropped": dropped}
        return CollectedStep(groups, sampled, record | counts | (self.curriculum.describe() if self.curriculum else {}))

    def _sample_round(
        self,
        algorithm: Algorithm,
        context: StepContext,
        version: int,
        rounds: int,
        counts: Counter[str],
        asked: Collection[str],
    ) -> list[Group]:
        """Sample and grade one round; the first includes replayed answers. `asked` holds the step's problems so far."""
        wanted, size = self.settings.problems_per_step, self.settings.group_size
        requests = algorithm.recall(self.pool, wanted, size, context, self._score) if rounds == 0 else []
        if requests:
            counts["replay/answers"] += sum(len(request.extra_completions) for request in requests)
        known = {*asked, *(request.problem.id for request in requests)}
        requests = [*requests, *algorithm.plan(self._next_problems(wanted - len(requests), known), size, context)]
        sampling = build_sampling(self.settings, self.template.stop)
        step = self.offset + context.step
        # A problem that reappears in a later round of the same step must not get the same random numbers.
        address = (context.seed, "rollout", step, *((rounds,) if rounds else ()))
        batches = [RequestBatch(requests, sampling, address), ask_greedily(requests, sampling)]
        groups, greedy = sample_batches(batches, self.sampler, self.template, version, counts, self.grader)
        if algorithm.teacher_wording:
            longest = self.window - sampling.max_tokens
            show_demonstrations(groups, self.template, algorithm.teacher_wording, longest, counts)
        groups = add_greedy(groups, requests, greedy)
        with self.timer("grade"):
            grade(groups, self.grader)
        if self.curriculum is not None:
            self.curriculum.rates.add(groups)
        return groups

    def _score(self, rollouts: Sequence[Rollout]) -> list[tuple[float, float]]:
        with self.timer("score"):
            return self.compute_mean_scores(rollouts)

    def _next_problems(self, count: int, asked: Collection[str]) -> list[Problem]:
        """Take the next problems of the stream that are not retired; solved problems are retired after each epoch."""
        if self.curriculum is not None:
            position, retired = self.stream.position, self.pool.retired
            chosen = self.curriculum.choose(position, count, retired | set(asked))
            # If the step has already asked all problems, ask them again with other random numbers.
            chosen = chosen or self.curriculum.choose(position, count, retired)
            self._advance(count)  # the position counts the problems that were asked
            return chosen
        problems: list[Problem] = []
        while len(problems) < count:
            retired = self.pool.retired  # those before the end of an epoch
            problems += [problem for problem in self._advance(1) if problem.id not in retired]
        return problems

    def _advance(self, count: int) -> list[Problem]:
        """Take problems from the stream; at the end of an epoch, retire the solved ones."""
        epoch = self.stream.position // len(self.stream.items)
        taken = self.stream.take(count)
        if self.stream.position // len(self.stream.items) > epoch:
            self.pool.end_epoch(len(self.stream.items), self.settings.problems_per_step)
        return taken

    def copy(self) -> RolloutCollector:
        """Copy the current state, for a checkpoint that may be written later."""
        stream, pool = replace(self.stream), self.pool.copy()
        known = self.curriculum and self.curriculum.copy()
        return replace(
            self, stream=stream, surplus=list(self.surplus), pool=pool, ahead=dict(self.ahead), curriculum=known
        )

    def to_rows(self) -> list[Row]:
        """Return the state for a checkpoint as JSON rows, without the stream's position."""
        surplus = [
            {"surplus": number, "rollout": encode_rollout(rollout)}
            for number, group in enumerate(self.surplus)
            for rollout in group
        ]
        ahead = [row for step, collected in sorted(self.ahead.items()) for row in _encode_step(step, collected)]
        known = self.curriculum.to_rows() if self.curriculum else []
        return [*surplus, *ahead, *self.pool.to_rows(), *known]

    def restore(self, rows: Sequence[Row]) -> None:
        """Restore the state from what `to_rows` returned."""
        problems = {problem.id: problem for problem in self.stream.items}
        groups: dict[int, Group] = {}
        sampled: dict[int, list[Rollout]] = {}
        self.ahead = {}
        for row in rows:
            if "surplus" in row:
                groups.setdefault(row["surplus"], []).append(decode_rollout(row["rollout"], problems))
            elif "ahead" in row:
                sampled.setdefault(row["ahead"], []).append(decode_rollout(row["rollout"], problems))
            elif "collected" in row:
                self.ahead[row["collected"]] = _decode_step(row, sampled.get(row["collected"], []))
        self.surplus = list(groups.values())
        self.pool = ReplayBuffer.from_rows(rows, problems)
        if self.curriculum is not None:
            self.curriculum.restore(rows)


def _encode_step(step: int, collected: CollectedStep) -> list[Row]:
    """Encode a step sampled ahead: one row per rollout, then one with its groups as indices of those rows.

    Leave out what the learner writes into rollouts, as the step may have begun when the checkpoint is written.
    """
    both = (collected.groups, collected.sampled)
    rollouts = {id(rollout): rollout for groups in both for group in groups for rollout in group}
    numbers = {key: number for number, key in enumerate(rollouts)}
    plain = (
        replace(rollout, advantage=0.0, old_logps=None, ref_logps=None, values=None, returns=None)
        for rollout in rollouts.values()
    )
    rows: list[Row] = [{"ahead": step, "rollout": encode_rollout(rollout)} for rollout in plain]
    groups, sampled = ([[numbers[id(rollout)] for rollout in group] for group in groups] for groups in both)
    return [*rows, {"collected": step, "groups": groups, "sampled": sampled, "counts": collected.counts}]


def _decode_step(row: Row, rollouts: Sequence[Rollout]) -> CollectedStep:
    groups, sampled = ([[rollouts[n] for n in group] for group in row[name]] for name in ("groups", "sampled"))
    return CollectedStep(groups, sampled, row["counts"])
