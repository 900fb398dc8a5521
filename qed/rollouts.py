"""The stages of an online step: sample, grade, credit, minibatches. Each writes its own fields of a rollout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Generic, TypeVar

from qed.algorithms.base import Algorithm
from qed.draws import seed_of, shuffled
from qed.errors import Diverged, QedError
from qed.prompts.base import Template
from qed.rewards.grader import Grader
from qed.samplers.base import Sampler, Sampling
from qed.types import UNGRADED, Group, Groups, Request, Rollout

T = TypeVar("T")


@dataclass
class Stream(Generic[T]):
    """Items in an order shuffled anew for every epoch, without end; `position` is all its state."""

    items: Sequence[T]
    seed: int
    purpose: str
    position: int = 0
    _epoch: tuple[int, list[int]] = field(default=(-1, []), repr=False)  # the order of one epoch, kept while it lasts

    def take(self, count: int) -> list[T]:
        """The next items."""
        taken: list[T] = []
        while len(taken) < count:
            epoch, offset = divmod(self.position, len(self.items))
            if self._epoch[0] != epoch:
                self._epoch = (epoch, shuffled(len(self.items), self.seed, self.purpose, epoch))
            chunk = self._epoch[1][offset : offset + count - len(taken)]
            taken += [self.items[index] for index in chunk]
            self.position += len(chunk)
        return taken


def sample(
    requests: Sequence[Request],
    sampler: Sampler,
    template: Template,
    sampling: Sampling,
    address: tuple[int | str, ...],
    version: int = 0,
) -> list[Group]:
    """The answers that are asked for; the draws of each follow from the address, its problem's id and its number."""
    prompts = [template.prompt(request.problem) for request in requests]
    tokens = [template.tokens(prompt) for prompt in prompts]
    asked: Counter[str] = Counter()
    numbers: list[range] = []
    for request in requests:
        # A problem that stands twice in one step goes on counting, or its answers would be the same twice.
        first = asked[request.problem.id]
        numbers.append(range(first, first + request.count))
        asked[request.problem.id] += request.count
    seeds = [
        [seed_of(*address, request.problem.id, number) for number in own]
        for request, own in zip(requests, numbers, strict=True)
    ]
    answers = sampler.generate(tokens, seeds, sampling)
    return [
        [
            Rollout(
                request.problem,
                ids,
                answer.tokens,
                answer.logps,
                template.read(prompt, answer.tokens),
                answer.stop_reason,
                version=version,
                index=number,
                prompt_text=prompt.text,
            )
            for answer, number in zip(own, counted, strict=True)
        ]
        for request, prompt, ids, own, counted in zip(requests, prompts, tokens, answers, numbers, strict=True)
    ]


def with_greedy(
    groups: Sequence[Group],
    requests: Sequence[Request],
    sampler: Sampler,
    template: Template,
    sampling: Sampling,
    version: int = 0,
) -> list[Group]:
    """The groups, each with its greedy answer behind the others where its request asks for one."""
    asked = [Request(request.problem, 1) for request in requests if request.greedy]
    if not asked:
        return list(groups)
    found = iter(sample(asked, sampler, template, replace(sampling, temperature=0.0), ("greedy",), version))
    return [
        [*group, replace(next(found)[0], source="greedy", index=len(group))] if request.greedy else group
        for group, request in zip(groups, requests, strict=True)
    ]


def grade(groups: Groups, grader: Grader) -> None:
    """Judge every rollout; what could not be graded earns nothing and is counted by its tier, see `describe`.

    Raises:
        Diverged: a reward is not finite.
        QedError: the reward failed on every answer.
    """
    for group, grades in zip(groups, grader(groups), strict=True):
        for rollout, verdict in zip(group, grades, strict=True):
            rollout.grade = verdict
            if not math.isfinite(verdict.reward):
                raise Diverged(
                    f"The reward of an answer to problem {rollout.problem.id} is {verdict.reward}: {rollout.text[:200]}"
                )
    graded = [rollout.grade for rollout in flat(groups) if rollout.grade is not None]
    if graded and all(verdict.tier == "error" for verdict in graded):
        raise QedError(f"The reward failed on all of {len(graded)} answers, first with: {graded[0].reason}")


def credit(groups: Groups, algorithm: Algorithm) -> None:
    """Give every rollout its advantage."""
    for group, advantages in zip(groups, algorithm.credit(groups), strict=True):
        for rollout, advantage in zip(group, advantages, strict=True):
            rollout.advantage = advantage


def minibatches(rows: Sequence[Rollout], size: int) -> list[list[Rollout]]:
    """The rows of each optimizer step, in the order given; 0 takes all at once."""
    size = size or max(1, len(rows))
    return [list(rows[start : start + size]) for start in range(0, max(1, len(rows)), size)]


def flat(groups: Iterable[Group]) -> list[Rollout]:
    """All rollouts of some groups."""
    return [rollout for group in groups for rollout in group]


def describe(groups: Groups) -> dict[str, float]:
    """What a step's rollouts look like, nothing dropped in silence: rewards, formats, lengths, truncations, empty
    groups."""
    greedy = [rollout.reward for group in groups for rollout in group if rollout.source == "greedy"]
    groups = [[rollout for rollout in group if rollout.source != "greedy"] for group in groups]
    rollouts = flat(groups)
    if not rollouts:
        return {}
    graded = [(rollout, rollout.grade) for rollout in rollouts if rollout.grade is not None]
    spread = [[rollout.reward for rollout in group] for group in groups]
    right = [len(r.output) for r, verdict in graded if verdict.correct]
    wrong = [len(r.output) for r, verdict in graded if not verdict.correct]
    parts = sorted({name for _, verdict in graded for name in verdict.parts})
    return {
        "reward/mean": fmean(rollout.reward for rollout in rollouts),
        # A part that does not apply to an answer is not there.
        **{f"reward/{name}/mean": fmean(v.parts[name] for _, v in graded if name in v.parts) for name in parts},
        **({"reward/greedy": fmean(greedy)} if greedy else {}),
        "accuracy": fmean(verdict.correct for _, verdict in graded),
        "format": fmean(verdict.format_ok for _, verdict in graded),
        "groups/zero_std": fmean(max(rewards) == min(rewards) for rewards in spread),
        "groups/all_right": fmean(all(r.grade is not None and r.grade.correct for r in group) for group in groups),
        "groups/all_wrong": fmean(not any(r.grade is not None and r.grade.correct for r in group) for group in groups),
        **{f"grading/{tier}s": sum(v.tier == tier for _, v in graded) for tier in UNGRADED},
        "length/total": sum(len(rollout.output) for rollout in rollouts),
        "length/mean": fmean(len(rollout.output) for rollout in rollouts),
        **({"length/right_mean": fmean(right)} if right else {}),
        **({"length/wrong_mean": fmean(wrong)} if wrong else {}),
        "length/truncated_frac": fmean(rollout.stop_reason == "length" for rollout in rollouts),
    }
