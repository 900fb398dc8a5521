"""How demonstrations join a group: as the start of its completions (LUFFY, arXiv 2504.14945), or as additional rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from qed.algorithms.base import StepContext, require
from qed.randomness import draw_uniform
from qed.types import Group, Groups, Problem, Request, Rollout

Strategy = Literal["random", "linear_max", "reverse_linear", "fixed", "linear", "cosine", "binomial"]
WrongTraces = Literal["drop", "keep"]
WINDOWS = 10  # number of windows in the strategies linear_max and reverse_linear
PIECES = 5  # pieces of a demonstration that the strategy binomial may give; the policy always writes the rest


class Guidance(Protocol):
    """Settings that choose which requests get demonstrations, and which demonstrations are trained on."""

    @property
    def active(self) -> bool:
        """Whether any group has a demonstration."""

    def plan(self, requests: Sequence[Request], context: StepContext) -> list[Request]:
        """Return the requests with their demonstrations."""

    def drop_wrong_traces(self, groups: Groups) -> list[Group]:
        """Remove complete demonstrations that the grader judges wrong or fails on, unless the settings keep them."""


@dataclass(frozen=True)
class WholeDemonstrations:
    """Which groups get complete demonstrations in addition to the sampled answers."""

    traces: int = 1
    """Number of demonstrations that join a group; a problem with fewer contributes all it has."""
    trace_share: float = 1.0
    """The share of problems that use a demonstration; drawn again for every problem and step."""
    wrong_traces: WrongTraces = "drop"
    """What to do with demonstrations that the grader judges wrong: drop removes and counts them; keep trains on
    them."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(self.traces >= 0, "algorithm.guidance.traces must not be negative.")
        require(0 <= self.trace_share <= 1, "algorithm.guidance.trace_share must lie in [0, 1].")

    @property
    def active(self) -> bool:
        """Whether any group has a demonstration."""
        return self.traces > 0 and self.trace_share > 0

    def plan(self, requests: Sequence[Request], context: StepContext) -> list[Request]:
        """Return the requests with the number of demonstrations that join their groups."""
        return [
            replace(request, demonstrations=self.traces)
            if is_drawn(self.trace_share, address_draws(request.problem, context))
            else request
            for request in requests
        ]

    def drop_wrong_traces(self, groups: Groups) -> list[Group]:
        """Remove demonstrations that the grader judges wrong, unless `wrong_traces` keeps them."""
        return drop_wrong_traces(groups, self.wrong_traces)


@dataclass(frozen=True)
class ExpertPrefix:
    """Which answers of a group start with a prefix of a demonstration, and how long it is."""

    traces: int = 1
    """Number of answers per group that start with a prefix of a demonstration, or consist of all of it; -1: every
    answer."""
    trace_share: float = 1.0
    """The share of problems that use a demonstration; drawn again for every problem and step."""
    strategy: Strategy = "random"
    """Length of the prefix, as a share of the demonstration. random: uniform between `least` and `most`; linear_max,
    reverse_linear: random below a bound that falls or rises in ten windows; fixed: evenly spaced between `least` and
    `most` over the group; linear: falls with the step; cosine: random between `most` and a bound that falls along half
    a cosine from `most` to `least` within `strategy_share` of the run; binomial: each of five sixths is given with that
    bound as its probability, and nothing after `strategy_share` of the run."""
    least: float = 1.0
    """Smallest share of a demonstration to use as a prefix."""
    most: float = 1.0
    """Largest share; 1 uses the whole demonstration, end token included, and samples nothing."""
    strategy_steps: int = 1000
    """Number of steps over which the bound of linear_max, reverse_linear and linear moves."""
    strategy_share: float = 1.0
    """Share of the run's steps over which cosine and binomial fall."""
    same_share: bool = False
    """Draw one share for all guided answers of a group."""
    wrong_traces: WrongTraces = "drop"
    """What to do with complete demonstrations that the grader judges wrong: drop removes them from the group and counts
    them; keep trains on them, with their negative advantage."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        where = "algorithm.guidance"
        require(self.traces >= -1, f"{where}.traces must be -1 or more.")
        require(0 <= self.trace_share <= 1, f"{where}.trace_share must lie in [0, 1].")
        require(0 <= self.least <= self.most <= 1, f"{where} requires 0 <= least <= most <= 1.")
        require(self.strategy_steps >= 1, f"{where}.strategy_steps must be at least 1.")
        require(0 < self.strategy_share <= 1, f"{where}.strategy_share must lie in (0, 1].")

    @property
    def active(self) -> bool:
        """Whether any completion starts with a demonstration."""
        return self.traces != 0 and self.trace_share > 0 and self.most > 0

    def plan(self, requests: Sequence[Request], context: StepContext) -> list[Request]:
        """Return the requests with the prefix shares of their guided completions, which come first."""
        return [
            replace(request, shares=self.draw_shares(request.problem, request.count, context)) for request in requests
        ]

    def drop_wrong_traces(self, groups: Groups) -> list[Group]:
        """Remove complete demonstrations that the grader judges wrong, unless `wrong_traces` keeps them."""
        return drop_wrong_traces(groups, self.wrong_traces)

    def draw_shares(self, problem: Problem, group_size: int, context: StepContext) -> tuple[float, ...]:
        """Draw the prefix shares of the guided completions of a group, which come first."""
        count = group_size if self.traces < 0 else min(self.traces, group_size)
        address = address_draws(problem, context)
        if not is_drawn(self.trace_share, address):
            return ()
        numbers = [0 if self.same_share else number for number in range(count)]
        if self.strategy in ("cosine", "binomial"):
            return tuple(self._anneal((*address, number), context) for number in numbers)
        draws = [draw_uniform(*address, number) for number in numbers]
        return tuple(self._compute_share(draw, number, count, context.step) for number, draw in enumerate(draws))

    def _anneal(self, address: Sequence[int | str], context: StepContext) -> float:
        """Compute one completion's share by a strategy whose bound falls over the run."""
        done = min(1.0, (context.step - 1) / (context.steps * self.strategy_share))
        bound = self.least + (self.most - self.least) * (1 + math.cos(math.pi * done)) / 2
        if self.strategy == "cosine":
            return bound + (self.most - bound) * draw_uniform(*address)
        given = sum(draw_uniform(*address, "piece", piece) < bound for piece in range(PIECES)) if done < 1 else 0
        return given / (PIECES + 1)

    def _compute_share(self, draw: float, number: int, count: int, step: int) -> float:
        """Compute one completion's share by the strategy."""
        if self.strategy == "fixed":
            return self.least + (self.most - self.least) * number / max(1, count - 1)
        if self.strategy == "linear":
            return self.most * max(0.0, 1 - step / self.strategy_steps)
        if self.strategy == "random":
            return self.least + (self.most - self.least) * draw
        window = min(WINDOWS - 1, step * WINDOWS // self.strategy_steps)
        tenths = window + 1 if self.strategy == "reverse_linear" else WINDOWS - window
        return draw * tenths * self.most / WINDOWS


def address_draws(problem: Problem, context: StepContext) -> tuple[int | str, ...]:
    """Return the random-number address for decisions about a problem's demonstrations in a step."""
    return context.seed, "guidance", context.step, problem.id


def is_drawn(share: float, address: Sequence[int | str]) -> bool:
    """Decide at random whether a problem belongs to the share that uses a demonstration."""
    return draw_uniform(*address, "whether") < share


def drop_wrong_traces(groups: Groups, wrong_traces: WrongTraces) -> list[Group]:
    """Remove complete demonstrations that the grader judges wrong or fails on, unless `wrong_traces` keeps them."""
    if wrong_traces == "keep":
        return list(groups)
    return [[one for one in group if one.source != "expert" or is_right_trace(one)] for group in groups]


def is_right_trace(rollout: Rollout) -> bool:
    """Whether the grader judged a complete demonstration correct."""
    return rollout.grade is not None and rollout.grade.correct
