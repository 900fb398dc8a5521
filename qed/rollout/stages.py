"""The stages of an RL step: sample, grade, assign advantages, split into minibatches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from qed.algorithms.base import Algorithm
from qed.algorithms.parts.crediting import read_credit
from qed.config.settings import LearnerSettings
from qed.data.prompts.base import PromptTemplate
from qed.environments.base import SINGLE
from qed.errors import Diverged, RewardFailed, UsageError
from qed.guards.finite import require_finite
from qed.randomness import derive_seed, shuffle_indices
from qed.rewards.grader import Grader
from qed.rollout.append import append_tokens
from qed.rollout.turns import add_replies
from qed.sampling.base import PromptBatch, Sampler, Sampling, generate_batches, keep_prefixes, require_support
from qed.types import Completion, Group, Groups, Prompt, Request, Rollout

T = TypeVar("T")


@dataclass
class Stream(Generic[T]):
    """An endless stream of items, reshuffled for every epoch; `position` is its entire state."""

    items: Sequence[T]
    seed: int
    purpose: str
    position: int = 0
    _epoch: tuple[int, list[int]] = field(default=(-1, []), repr=False)  # the number and the order of the epoch

    def take(self, count: int) -> list[T]:
        """Return the next `count` items."""
        taken: list[T] = []
        while len(taken) < count:
            epoch, offset = divmod(self.position, len(self.items))
            if self._epoch[0] != epoch:
                self._epoch = (epoch, shuffle_indices(len(self.items), self.seed, self.purpose, epoch))
            chunk = self._epoch[1][offset : offset + count - len(taken)]
            taken += [self.items[index] for index in chunk]
            self.position += len(chunk)
        return taken


class RequestBatch(NamedTuple):
    """Requests whose answers are sampled with the same parameters."""

    requests: Sequence[Request]
    sampling: Sampling
    address: tuple[int | str, ...]  # of the random numbers


def sample(
    requests: Sequence[Request],
    sampler: Sampler,
    template: PromptTemplate,
    sampling: Sampling,
    address: tuple[int | str, ...],
    version: int = 0,
    grader: Grader | None = None,
) -> list[Group]:
    """Sample a group of answers for each request; see `sample_batches`."""
    return sample_batches([RequestBatch(requests, sampling, address)], sampler, template, version, grader=grader)[0]


def sample_batches(
    batches: Sequence[RequestBatch],
    sampler: Sampler,
    template: PromptTemplate,
    version: int = 0,
    counts: Counter[str] | None = None,
    grader: Grader | None = None,
) -> list[list[Group]]:
    """Sample a group of answers for each request of each batch, with all turns of the template's environment.

    An answer's random numbers depend only on the address, its problem's id and its index. A group begins with its
    request's extra completions and prefixes, and ends with its demonstrations; complete answers are not sampled. An
    answer has at most `max_tokens` tokens, including a prefix.

    Args:
        batches: the problems, the number of answers for each, and how they are sampled.
        sampler: generates the completions, for all batches at once if it can.
        template: renders prompts and decodes answers.
        version: version of the sampling policy.
        counts: updated with how demonstrations were used.
        grader: grades answers for environments that need to know whether they are correct.
    """
    counts = Counter() if counts is None else counts
    found = [_start_groups(batch, template, counts) for batch in batches]
    places = [
        [(n, index) for n, group in enumerate(groups) for index, one in enumerate(group) if one.source == "policy"]
        for groups in found
    ]
    turn = 0
    # A caller's custom template may have no environment.
    environment = getattr(template, "environment", SINGLE)
    with keep_prefixes(sampler) if environment.max_turns > 1 else nullcontext():
        while any(places):
            # The first turn has the random numbers of an answer without turns.
            address = ("turn", turn) if turn else ()
            turns = [
                _Turn(groups, own, batch.sampling, (*batch.address, *address))
                for batch, groups, own in zip(batches, found, places, strict=True)
                if own
            ]
            _sample_turns(turns, sampler, template, version)
            turn += 1
            if turn == environment.max_turns:
                break
            places = [
                add_replies(groups, own, template, batch.sampling.max_tokens, sampler, grader)
                for batch, groups, own in zip(batches, found, places, strict=True)
            ]
    return found


def _start_groups(batch: RequestBatch, template: PromptTemplate, counts: Counter[str]) -> list[Group]:
    sampled: Counter[str] = Counter()
    groups: list[Group] = []
    for request in batch.requests:
        members = start_group(request, template, batch.sampling.max_tokens, batch.address, counts)
        # If a problem occurs twice in a step, its indices continue; otherwise both groups would have equal answers.
        first = sampled[request.problem.id]
        groups.append([member.copy_with(index=first + number) for number, member in enumerate(members)])
        sampled[request.problem.id] += len(members)
    return groups


class _Turn:
    """One turn of the members at the given places (group, index); its results are written into the groups."""

    def __init__(
        self,
        groups: list[Group],
        places: Sequence[tuple[int, int]],
        sampling: Sampling,
        address: tuple[int | str, ...],
    ) -> None:
        self.groups = groups
        # Members of a group with the same prefix share one prompt, which the sampler computes once.
        self.shared: dict[tuple[int, Sequence[int]], list[int]] = {}
        for group_index, index in places:
            self.shared.setdefault((group_index, groups[group_index][index].output), []).append(index)
        sharing = [[groups[group][index] for index in indices] for (group, _), indices in self.shared.items()]
        self.asked = PromptBatch(
            [(*groups[group_index][0].prompt, *prefix) for group_index, prefix in self.shared],
            [[derive_seed(*address, each.problem.id, each.index) for each in members] for members in sharing],
            sampling,
            [len(prefix) for _, prefix in self.shared],
        )

    def add(self, completions: Sequence[Sequence[Completion]], template: PromptTemplate, version: int) -> None:
        """Append the completions of each prompt to the members."""
        for ((group_index, _), indices), answers in zip(self.shared.items(), completions, strict=True):
            group = self.groups[group_index]
            for index, answer in zip(indices, answers, strict=True):
                require_support(answer, self.asked.sampling)
                member = _append_completion(group[index], answer, template, self.asked.sampling)
                sampled_by = version if answer.version is None else answer.version
                # Servers may have newer weights for a later turn; the oldest determine how stale an answer is.
                oldest = min(sampled_by, member.version) if member.turn_rewards else sampled_by
                group[index] = member.copy_with(version=oldest)


def _sample_turns(turns: Sequence[_Turn], sampler: Sampler, template: PromptTemplate, version: int) -> None:
    try:
        completions = generate_batches(sampler, [turn.asked for turn in turns])
    except Diverged as error:
        raise Diverged(str(error), flatten(group for turn in turns for group in turn.groups)) from error
    for turn, own in zip(turns, completions, strict=True):
        turn.add(own, template, version)


def start_group(
    request: Request, template: PromptTemplate, max_tokens: int, address: tuple[int | str, ...], counts: Counter[str]
) -> Group:
    """Build a group's members before sampling: complete answers, prefixes, empty answers, then demonstrations.

    Raises:
        UsageError: the prompt has no token.
    """
    prompt = template.prompt(request.problem)
    tokens = template.tokens(prompt)
    if not tokens:
        raise UsageError(f"The prompt of problem {request.problem.id!r} has no tokens, but a model needs at least one.")
    empty = Rollout(request.problem, tokens, (), (), prompt.opened, "length", prompt_text=prompt.text)
    demonstrations = _select_demonstrations(request, template, max_tokens, address, counts)
    shares = request.shares if demonstrations else ()
    guided = [
        _build_prefix(empty, demonstrations[number % len(demonstrations)], share, template)
        for number, share in enumerate(shares)
    ]
    joined = [_build_prefix(empty, each, 1.0, template) for each in demonstrations[: request.demonstrations]]
    if request.shares or request.demonstrations:
        counts["guidance/traces"] += sum(member.given > 0 for member in (*guided, *joined))
    members = [*request.extra_completions, *guided]
    return [*members, *[empty] * (request.count - len(members)), *joined]


def _select_demonstrations(
    request: Request, template: PromptTemplate, max_tokens: int, address: tuple[int | str, ...], counts: Counter[str]
) -> list[Rollout]:
    """Return the demonstrations of a problem that are short enough, in a random order for this step."""
    if not any(request.shares) and not request.demonstrations:
        return []
    written = template.demonstrations(request.problem)
    fitting = [demonstration for demonstration in written if len(demonstration.output) <= max_tokens]
    counts["guidance/without_trace"] += not written
    counts["guidance/too_long"] += bool(written) and not fitting
    return [fitting[number] for number in shuffle_indices(len(fitting), *address, request.problem.id, "trace")]


def _build_prefix(empty: Rollout, demonstration: Rollout, share: float, template: PromptTemplate) -> Rollout:
    """Return the leading `share` of a demonstration's tokens as a prefix for the policy to continue.

    If it contains a stop string, return the complete demonstration, because the policy could not continue it.
    """
    count = int(len(demonstration.output) * share)
    if template.stops(demonstration.output[:count]):
        count = len(demonstration.output)
    complete = count == len(demonstration.output)
    return replace(
        demonstration if complete else empty,
        output=demonstration.output[:count],
        logps=(0.0,) * count,
        source="expert" if complete else "policy",
        sampled_mask=(False,) * count,
        loss_mask=demonstration.loss_mask[:count],
        behaviour=demonstration.behaviour[:count],
    )


def _append_completion(rollout: Rollout, answer: Completion, template: PromptTemplate, sampling: Sampling) -> Rollout:
    """Append the sampled tokens to a prefix or to earlier turns, and decode the text of the complete answer.

    The rollout's text so far is what the prompt opened for it, such as `<think>`, and the text of earlier turns.
    """
    extended = append_tokens(rollout, answer.tokens, answer.logps, support=answer.support)
    # Earlier turns already have at least `min_tokens`.
    read, least = (answer.tokens, 0) if rollout.turn_rewards else (extended.output, sampling.min_tokens)
    return extended.copy_with(
        text=template.read(Prompt(rollout.prompt_text, rollout.text), read, least),
        stop_reason=answer.stop_reason,
    )


def ask_greedily(requests: Sequence[Request], sampling: Sampling) -> RequestBatch:
    """Build a batch with a greedy answer to each request that has `greedy` set."""
    greedy = [Request(request.problem, 1) for request in requests if request.greedy]
    return RequestBatch(greedy, replace(sampling, temperature=0.0), ("greedy",))


def add_greedy(groups: Sequence[Group], requests: Sequence[Request], greedy: Iterable[Group]) -> list[Group]:
    """Append the answers to `ask_greedily` to the groups of their requests."""
    left = iter(greedy)
    return [
        [*group, replace(next(left)[0], source="greedy", index=len(group))] if request.greedy else group
        for group, request in zip(groups, requests, strict=True)
    ]


def grade(groups: Groups, grader: Grader) -> None:
    """Grade every rollout; ungraded ones have no reward, and `describe_groups` counts them by tier.

    Raises:
        Diverged: a reward is not finite.
        RewardFailed: the reward failed on every answer.
    """
    assign_grades(groups, grader)
    graded = [rollout.grade for rollout in flatten(groups) if rollout.grade is not None]
    if graded and all(verdict.tier == "error" for verdict in graded):
        raise RewardFailed(f"The reward failed on all of {len(graded)} answers, first with: {graded[0].reason}")


def assign_grades(groups: Groups, grader: Grader) -> None:
    """Grade every rollout, even if the reward fails on all of them.

    Raises:
        Diverged: a reward is not finite.
    """
    for group, grades in zip(groups, grader(groups), strict=True):
        for rollout, verdict in zip(group, grades, strict=True):
            rollout.grade = verdict
    require_finite(flatten(groups))


def assign_advantages(groups: Groups, algorithm: Algorithm) -> None:
    """Set every rollout's advantage and, with a critic, the returns that the critic learns."""
    credited = read_credit(type(algorithm).__name__, groups, algorithm.credit(groups))
    for group, advantages in zip(groups, credited, strict=True):
        for rollout, advantage in zip(group, advantages, strict=True):
            rollout.advantage = advantage
            if algorithm.value_model is not None:
                rollout.returns = algorithm.compute_returns(rollout)


def split_into_updates(
    rows: Sequence[Rollout], settings: LearnerSettings, together: int, address: tuple[int | str, ...]
) -> list[list[Rollout]]:
    """Split the rows of a step into minibatches, one for each update; every pass has its own random order.

    Args:
        rows: rollouts of the step.
        settings: provides `batch_size` and `passes`.
        together: number of consecutive rows that stay in one minibatch.
        address: address of the random orders; different for each step.
    """
    passes = (split_minibatches(rows, settings.batch_size, together, (*address, n)) for n in range(settings.passes))
    return [minibatch for minibatches in passes for minibatch in minibatches]


def split_minibatches(
    rows: Sequence[Rollout], size: int, together: int = 1, address: tuple[int | str, ...] = ()
) -> list[list[Rollout]]:
    """Split the rows of one pass into minibatches of nearly equal size, one for each optimizer step.

    Rows are shuffled in every pass, including the first; otherwise the answers to one problem would always be in the
    same update. The reference implementation of PPO (arXiv 1707.06347) does the same; TRL shuffles once and splits
    every pass alike; verl keeps the order unless `actor.shuffle` is set. A single minibatch keeps its order, because
    the order does not change the gradient.

    Args:
        rows: rollouts of the step; every `together` consecutive rows are a bundle, such as a preference pair.
        size: maximum number of rows of a minibatch, rounded up to complete bundles; 0 puts all rows into one.
        together: number of rows in a bundle, which are never separated.
        address: address of the random order; different for each step and pass.
    """
    bundles = [list(rows[start : start + together]) for start in range(0, len(rows), together)]
    count = max(1, math.ceil(len(bundles) / math.ceil(size / together))) if size else 1
    order = shuffle_indices(len(bundles), *address) if count > 1 else range(len(bundles))
    ends = [number * len(bundles) // count for number in range(count + 1)]
    return [flatten(bundles[index] for index in order[start:end]) for start, end in pairwise(ends)]


def flatten(groups: Iterable[Group]) -> list[Rollout]:
    """Return the rollouts of all groups as one list."""
    return [rollout for group in groups for rollout in group]
