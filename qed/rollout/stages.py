"""The stages of an online step: sample, grade, credit, minibatches. Each writes its own fields of a rollout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Generic, TypeVar

from qed.algorithms.base import Algorithm
from qed.algorithms.parts.guidance import is_wrong_trace
from qed.data.prompts.base import PromptTemplate
from qed.errors import Diverged, QedError
from qed.guards.finite import require_finite
from qed.randomness import derive_seed, shuffle_indices
from qed.rewards.grader import Grader
from qed.sampling.base import Sampler, Sampling
from qed.types import UNGRADED, Completion, Group, Groups, Prompt, Request, Rollout, append_tokens

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
                self._epoch = (epoch, shuffle_indices(len(self.items), self.seed, self.purpose, epoch))
            chunk = self._epoch[1][offset : offset + count - len(taken)]
            taken += [self.items[index] for index in chunk]
            self.position += len(chunk)
        return taken


def sample(
    requests: Sequence[Request],
    sampler: Sampler,
    template: PromptTemplate,
    sampling: Sampling,
    address: tuple[int | str, ...],
    version: int = 0,
    counts: Counter[str] | None = None,
) -> list[Group]:
    """The answers that are asked for; the draws of each follow from the address, its problem's id and its number.

    What a request gives, a whole answer or the beginning of one, stands first in its group; whole answers are not
    sampled. An answer has at most `max_tokens` tokens, those given among them.

    Args:
        requests: what is asked.
        sampler: generates.
        template: puts the problems to the model.
        sampling: how.
        address: of the draws.
        version: of the policy that samples.
        counts: gets what became of the written answers that were asked for.
    """
    counts = Counter() if counts is None else counts
    asked: Counter[str] = Counter()
    groups: list[Group] = []
    for request in requests:
        members = start_group(request, template, sampling.max_tokens, address, counts)
        # A problem that stands twice in one step goes on counting, or its answers would be the same twice.
        first = asked[request.problem.id]
        groups.append([replace(member, index=first + number) for number, member in enumerate(members)])
        asked[request.problem.id] += request.count
    # Answers that begin alike are asked for together, so that what they share is computed once.
    together: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for which, group in enumerate(groups):
        for place, member in enumerate(group):
            if member.source == "policy":
                together.setdefault((which, member.output), []).append(place)
    prompts = [groups[which][0].prompt + beginning for which, beginning in together]
    asking = [[groups[which][place] for place in places] for (which, _), places in together.items()]
    seeds = [[derive_seed(*address, one.problem.id, one.index) for one in some] for some in asking]
    given = [len(beginning) for _, beginning in together]
    try:
        answers = sampler.generate(prompts, seeds, sampling, *([given] if any(given) else []))
    except Diverged as error:
        raise Diverged(str(error), flatten(groups)) from error
    for ((which, _), places), found in zip(together.items(), answers, strict=True):
        group = groups[which]
        for place, answer in zip(places, found, strict=True):
            group[place] = _append_completion(group[place], answer, template, version)
    return groups


def start_group(
    request: Request, template: PromptTemplate, most: int, address: tuple[int | str, ...], counts: Counter[str]
) -> Group:
    """The members of a group before any is sampled: whole answers first, then beginnings, then empty ones."""
    prompt = template.prompt(request.problem)
    empty = Rollout(request.problem, template.tokens(prompt), (), (), prompt.opened, "length", prompt_text=prompt.text)
    traces = _select_demonstrations(request, template, most, address, counts)
    shares = request.shares if traces else ()
    guided = [
        _build_prefix(empty, traces[number % len(traces)], share, template) for number, share in enumerate(shares)
    ]
    if request.shares:
        counts["guidance/traces"] += sum(member.given > 0 for member in guided)
    members = [*request.extra_completions, *guided]
    return members + [empty] * (request.count - len(members))


def _select_demonstrations(
    request: Request, template: PromptTemplate, most: int, address: tuple[int | str, ...], counts: Counter[str]
) -> list[Rollout]:
    """The written answers to a problem that are short enough, in the order in which this step takes them."""
    if not any(request.shares):
        return []
    written = template.demonstrations(request.problem)
    fitting = [trace for trace in written if len(trace.output) <= most]
    counts["guidance/without_trace"] += not written
    counts["guidance/too_long"] += bool(written) and not fitting
    return [fitting[number] for number in shuffle_indices(len(fitting), *address, request.problem.id, "trace")]


def _build_prefix(empty: Rollout, trace: Rollout, share: float, template: PromptTemplate) -> Rollout:
    """A share of a written answer, to go on from; the whole of it is the writer's.

    What holds a stop string is whole: an answer of the policy's own would have ended there.
    """
    count = int(len(trace.output) * share)
    if template.stops(trace.output[:count]):
        count = len(trace.output)
    whole = count == len(trace.output)
    return replace(
        trace if whole else empty,
        output=trace.output[:count],
        logps=(0.0,) * count,
        source="expert" if whole else "policy",
        sampled_mask=(False,) * count,
        behaviour=trace.behaviour[:count],
    )


def _append_completion(rollout: Rollout, answer: Completion, template: PromptTemplate, version: int) -> Rollout:
    """An answer with what was sampled behind its beginning; until then its text is what the prompt opened for it."""
    whole = append_tokens(rollout, answer.tokens, answer.logps)
    return replace(
        whole,
        text=template.read(Prompt(rollout.prompt_text, rollout.text), whole.output),
        stop_reason=answer.stop_reason,
        version=version,
    )


def add_greedy(
    groups: Sequence[Group],
    requests: Sequence[Request],
    sampler: Sampler,
    template: PromptTemplate,
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
    require_finite(flatten(groups))
    graded = [rollout.grade for rollout in flatten(groups) if rollout.grade is not None]
    if graded and all(verdict.tier == "error" for verdict in graded):
        raise QedError(f"The reward failed on all of {len(graded)} answers, first with: {graded[0].reason}")


def assign_advantages(groups: Groups, algorithm: Algorithm) -> None:
    """Give every rollout its advantage."""
    for group, advantages in zip(groups, algorithm.credit(groups), strict=True):
        for rollout, advantage in zip(group, advantages, strict=True):
            rollout.advantage = advantage


def split_minibatches(
    rows: Sequence[Rollout], size: int, together: int = 1, address: tuple[int | str, ...] = ()
) -> list[list[Rollout]]:
    """Split the rows of one pass into the rows of each optimizer step, as evenly as whole bundles allow.

    Rows are shuffled in every pass, the first one too, or the answers to one problem would always share an update. The
    reference implementation of PPO (arXiv 1707.06347) does the same; TRL shuffles once and splits every pass alike;
    verl keeps the order unless `actor.shuffle` is set. A single minibatch keeps its order, which changes no gradient.

    Args:
        rows: of the step; every `together` consecutive ones are a bundle, such as a preference pair.
        size: the most rows of a minibatch, rounded up to whole bundles; 0 takes all rows at once.
        together: rows of a bundle.
        address: of the order, another one in each step and pass.
    """
    bundles = [list(rows[start : start + together]) for start in range(0, len(rows), together)]
    count = max(1, math.ceil(len(bundles) / math.ceil(size / together))) if size else 1
    order = shuffle_indices(len(bundles), *address) if count > 1 else range(len(bundles))
    ends = [number * len(bundles) // count for number in range(count + 1)]
    return [flatten(bundles[place] for place in order[start:end]) for start, end in pairwise(ends)]


def flatten(groups: Iterable[Group]) -> list[Rollout]:
    """All rollouts of some groups."""
    return [rollout for group in groups for rollout in group]


def describe_groups(groups: Groups) -> dict[str, float]:
    """What a step's rollouts look like, nothing dropped in silence: rewards, formats, lengths, truncations, empty
    groups.

    Figures of answers are those of the policy's own, where there are any: what was given is not its merit. A length is
    the number of trained tokens: a tool's result does not count.
    """
    greedy = [one.reward for group in groups for one in group if one.source == "greedy" and one.has_reward]
    groups = [[rollout for rollout in group if rollout.source != "greedy"] for group in groups]
    everything = flatten(groups)
    if not everything:
        return {}
    rollouts = [rollout for rollout in everything if rollout.is_on_policy] or everything
    traces = [rollout for rollout in everything if rollout.source == "expert"]
    earned = [trace.reward for trace in traces if trace.has_reward]
    graded = [(rollout, rollout.grade) for rollout in rollouts if rollout.grade is not None]
    rewards = [rollout.reward for rollout in rollouts if rollout.has_reward]
    spread = [{rollout.reward for rollout in group if rollout.has_reward} for group in groups]
    right = [r.trained_count for r, verdict in graded if verdict.correct]
    wrong = [r.trained_count for r, verdict in graded if not verdict.correct]
    parts = sorted({name for _, verdict in graded for name in verdict.parts})
    return {
        # An answer without a reward is counted, and is in no statistic of rewards; without any there is none.
        **({"reward/mean": fmean(rewards)} if rewards else {}),
        # A part that does not apply to an answer is not there.
        **{f"reward/{name}/mean": fmean(v.parts[name] for _, v in graded if name in v.parts) for name in parts},
        **({"reward/greedy": fmean(greedy)} if greedy else {}),
        "accuracy": fmean(verdict.correct for _, verdict in graded),
        "format": fmean(verdict.format_ok for _, verdict in graded),
        "groups/zero_std": fmean(len(different) < 2 for different in spread),
        "groups/all_right": fmean(all(r.grade is not None and r.grade.correct for r in group) for group in groups),
        "groups/all_wrong": fmean(not any(r.grade is not None and r.grade.correct for r in group) for group in groups),
        **{f"grading/{tier}s": sum(v.tier == tier for _, v in graded) for tier in UNGRADED},
        "grading/without_reward": sum(not rollout.has_reward for rollout in everything),
        "length/total": sum(rollout.trained_count for rollout in rollouts),
        "length/mean": fmean(rollout.trained_count for rollout in rollouts),
        **({"length/right_mean": fmean(right)} if right else {}),
        **({"length/wrong_mean": fmean(wrong)} if wrong else {}),
        "length/truncated_frac": fmean(rollout.stop_reason == "length" for rollout in rollouts),
        **({"guidance/trace_reward": fmean(earned)} if earned else {}),
        **({"guidance/wrong_traces": sum(map(is_wrong_trace, traces))} if traces else {}),
    }
