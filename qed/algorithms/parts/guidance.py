"""How much of a written answer the members of a group are given to go on from, as LUFFY does (arXiv 2504.14945)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qed.algorithms.base import StepContext, require
from qed.randomness import draw_uniform
from qed.types import Group, Groups, Problem, Request, Rollout

Strategy = Literal["random", "linear_max", "reverse_linear", "fixed", "linear"]
WINDOWS = 10  # of linear_max and reverse_linear


@dataclass(frozen=True)
class ExpertPrefix:
    """Which answers of a group begin with a written one, and with how much of it."""

    traces: int = 1
    """So many answers of each group are given the beginning of a written one, or all of it; -1: every answer."""
    trace_share: float = 1.0
    """The share of problems that are guided at all; a problem is drawn anew in every step."""
    strategy: Strategy = "random"
    """How much is given: random between the bounds, linear_max and reverse_linear random below a bound that falls or
    rises in ten windows, fixed a ladder between the bounds over the group's members, linear falling with the step."""
    least: float = 1.0
    """The smallest share of a written answer that is given."""
    most: float = 1.0
    """The largest share; 1 gives all of it, its end included, and nothing is sampled."""
    strategy_steps: int = 1000
    """The steps over which a strategy's bound moves."""
    same_share: bool = False
    """One draw for all guided answers of a group."""
    wrong_traces: Literal["drop", "keep"] = "drop"
    """Whole written answers that the grader finds wrong: drop leaves them out of the group and counts them, keep lets
    the group push them down."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        where = "algorithm.guidance"
        require(self.traces >= -1, f"{where}.traces must be -1 or more.")
        require(0 <= self.trace_share <= 1, f"{where}.trace_share must lie in [0, 1].")
        require(0 <= self.least <= self.most <= 1, f"{where} wants 0 <= least <= most <= 1.")
        require(self.strategy_steps >= 1, f"{where}.strategy_steps must be at least 1.")

    @property
    def active(self) -> bool:
        """Whether any answer is given anything."""
        return self.traces != 0 and self.trace_share > 0 and self.most > 0

    def plan(self, requests: Sequence[Request], context: StepContext) -> list[Request]:
        """The requests of a step, the guided answers first in each."""
        return [replace(request, shares=self.shares(request.problem, request.count, context)) for request in requests]

    def drop_wrong_traces(self, groups: Groups) -> list[Group]:
        """The groups without the whole written answers that the grader found wrong, unless those are kept."""
        if self.wrong_traces == "keep":
            return list(groups)
        return [[rollout for rollout in group if not is_wrong_trace(rollout)] for group in groups]

    def shares(self, problem: Problem, group_size: int, context: StepContext) -> tuple[float, ...]:
        """How much of a written answer the first members of a group are given."""
        count = group_size if self.traces < 0 else min(self.traces, group_size)
        address = (context.seed, "guidance", context.step, problem.id)
        if draw_uniform(*address, "whether") >= self.trace_share:
            return ()
        draws = [draw_uniform(*address, 0 if self.same_share else number) for number in range(count)]
        return tuple(self._share(draw, number, count, context.step) for number, draw in enumerate(draws))

    def _share(self, draw: float, number: int, count: int, step: int) -> float:
        if self.strategy == "fixed":
            return self.least + (self.most - self.least) * number / max(1, count - 1)
        if self.strategy == "linear":
            return self.most * max(0.0, 1 - step / self.strategy_steps)
        if self.strategy == "random":
            return self.least + (self.most - self.least) * draw
        window = min(WINDOWS - 1, step * WINDOWS // self.strategy_steps)
        tenths = window + 1 if self.strategy == "reverse_linear" else WINDOWS - window
        return draw * tenths * self.most / WINDOWS


def is_wrong_trace(rollout: Rollout) -> bool:
    """Whether an answer was written by someone else as a whole, and did not convince the grader."""
    return rollout.source == "expert" and not (rollout.grade is not None and rollout.grade.correct)
