"""Curricula choose the problems of a step by difficulty, by the policy's past success, and by source.

`uniform` asks all problems once per epoch in random order; `difficulty` asks the easy ones first in each epoch. Two
others use how often the policy solved each problem (`PassRates`), with a Beta posterior and a uniform prior:

- `thompson` draws a pass rate for each problem from its posterior and asks those whose draw is nearest to the target
  (arXiv 2507.04632, MoPPS, section 4: `alpha <- memory * alpha + right`, and so for `beta`, each counted beyond the
  prior of 1). Problems known to be solved or hopeless are rarely asked; unknown ones are tried.
- `learnability` draws problems with a probability proportional to p (1 - p), with the posterior mean p
  (arXiv 2502.12272).

The choices depend only on the run's seed, the number of problems asked before, and the pass rates.
"""

from __future__ import annotations

import copy
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import fmean, pstdev
from typing import Any

from qed.config.sampling_settings import SamplingSettings
from qed.errors import DataError, UsageError, suggest_nearest
from qed.randomness import derive_seed, shuffle_indices
from qed.types import Groups, Problem

ADAPTIVE = ("thompson", "learnability")  # curricula that depend on which answers were correct
MOST_CANDIDATES = 20_000  # most problems for which a rate is drawn in a round; beyond that, a random subset
# The hyphen in `grade-4` is not a minus sign.
NUMBER = re.compile(r"(?:(?<![\w.])-)?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")


@dataclass
class PassRates:
    """The policy's success on each problem: discounted numbers of correct and wrong answers, by problem id."""

    memory: float
    counts: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, groups: Groups) -> None:
        """Count the policy's own graded answers of each group, after discounting older ones by the factor `memory`."""
        for group in groups:
            verdicts = [
                rollout.grade.correct
                for rollout in group
                if rollout.source == "policy" and rollout.is_on_policy and rollout.grade and rollout.has_reward
            ]
            if verdicts:
                right, wrong = self.counts.get(group[0].problem.id, (0.0, 0.0))
                right, wrong = right * self.memory + sum(verdicts), wrong * self.memory + verdicts.count(False)
                self.counts[group[0].problem.id] = right, wrong

    def read(self, problem: Problem) -> tuple[float, float]:
        """Return the parameters of a problem's Beta posterior; (1, 1) if it was never asked."""
        right, wrong = self.counts.get(problem.id, (0.0, 0.0))
        return 1 + right, 1 + wrong

    def mean(self, problem: Problem) -> float:
        """Return the mean of a problem's posterior."""
        right, wrong = self.read(problem)
        return right / (right + wrong)


class Curriculum:
    """Chooses the problems of each step.

    Args:
        settings: kind of curriculum, and weights of sources.
        problems: all training problems.
        seed: seed of the random choices.

    Raises:
        DataError: a problem lacks the column that `difficulty` orders by.
        UsageError: a source with a weight has no problem.
    """

    def __init__(self, settings: SamplingSettings, problems: Sequence[Problem], seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.rates = PassRates(settings.curriculum_memory)
        self.weights = parse_mix(settings.mix, problems)
        self.sources: dict[str, list[Problem]] = {}
        for problem in problems:
            self.sources.setdefault(_choose_source(problem, self.weights), []).append(problem)
        self.names = sorted(self.sources)
        self.taken = dict.fromkeys(self.names, 0)  # number of problems taken from each source
        self._orders: dict[str, tuple[int, list[int]]] = {}  # number and order of each source's current epoch
        self._difficulties: dict[str, float] = {}
        if settings.curriculum == "difficulty":
            column = settings.curriculum_column
            self._difficulties = {problem.id: read_difficulty(problem, column) for problem in problems}

    @property
    def active(self) -> bool:
        """Whether problems are chosen in any other way than by plain shuffled epochs."""
        return self.settings.curriculum != "uniform" or bool(self.weights)

    @property
    def adaptive(self) -> bool:
        """Whether choices depend on the pass rates."""
        return self.settings.curriculum in ADAPTIVE

    def choose(self, position: int, count: int, excluded: Collection[str]) -> list[Problem]:
        """Choose the next problems; a source with too few repeats them, and one without any contributes none.

        Args:
            position: number of problems asked before.
            count: number of problems to choose.
            excluded: ids of problems to skip, such as those already in the step.
        """
        chosen: list[Problem] = []
        for source, wanted in sorted(Counter(self._draw_sources(position, count)).items()):
            if self.adaptive:
                chosen += self._choose_by_rates(source, wanted, (source, position), excluded)
            else:
                chosen += self._take(source, wanted, excluded)
        return chosen

    def _draw_sources(self, position: int, count: int) -> list[str]:
        """Return the source of each of the next problems, drawn by the weights."""
        weights = [self.weights.get(name, 1.0) for name in self.names]
        rng = random.Random(derive_seed(self.seed, "sources", position))
        return rng.choices(self.names, weights, k=count)

    def _take(self, source: str, count: int, excluded: Collection[str]) -> list[Problem]:
        """Take the next problems of a source's epochs; each epoch is reshuffled, or in order of difficulty."""
        problems, chosen = self.sources[source], list[Problem]()
        if all(problem.id in excluded for problem in problems):
            return chosen
        while len(chosen) < count:
            epoch, offset = divmod(self.taken[source], len(problems))
            if self._orders.get(source, (-1, []))[0] != epoch:
                self._orders[source] = epoch, self._order(source, epoch)
            problem = problems[self._orders[source][1][offset]]
            self.taken[source] += 1
            if problem.id not in excluded:
                chosen.append(problem)
        return chosen

    def _order(self, source: str, epoch: int) -> list[int]:
        problems = self.sources[source]
        order = shuffle_indices(len(problems), self.seed, "curriculum", source, epoch)
        # The sort is stable: equally difficult problems keep their random order.
        return sorted(order, key=lambda index: self._difficulties[problems[index].id]) if self._difficulties else order

    def _choose_by_rates(
        self, source: str, count: int, address: tuple[str | int, ...], excluded: Collection[str]
    ) -> list[Problem]:
        rng = random.Random(derive_seed(self.seed, "rates", *address))
        open_ = [problem for problem in self.sources[source] if problem.id not in excluded]
        candidates = rng.sample(open_, min(len(open_), MOST_CANDIDATES))
        if self.settings.curriculum == "thompson":
            target = self.settings.curriculum_target
            keys = [abs(rng.betavariate(*self.rates.read(problem)) - target) for problem in candidates]
        else:
            means = map(self.rates.mean, candidates)
            # The smallest of exponential draws, each divided by its weight, are a weighted sample without replacement.
            keys = [rng.expovariate(1.0) / (mean * (1 - mean)) for mean in means]
        ranked = sorted(range(len(candidates)), key=keys.__getitem__)
        return [candidates[index] for index in islice(cycle(ranked), count)]

    def describe(self) -> dict[str, float]:
        """Return the mean and spread of pass rates over the problems tried so far, and these problems' share."""
        tried = [problem for own in self.sources.values() for problem in own if problem.id in self.rates.counts]
        if not tried:
            return {}
        means = [self.rates.mean(problem) for problem in tried]
        share = len(tried) / sum(map(len, self.sources.values()))
        return {
            "curriculum/tried": share,
            "curriculum/pass_rate": fmean(means),
            "curriculum/spread": pstdev(means),
        }

    def copy(self) -> Curriculum:
        """Return a copy of the state, for a checkpoint that may be written later."""
        copied = copy.copy(self)
        copied.rates = PassRates(self.rates.memory, dict(self.rates.counts))
        copied.taken, copied._orders = dict(self.taken), dict(self._orders)
        return copied

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the state as JSON rows; empty without a curriculum."""
        state = {"counts": self.rates.counts, "taken": self.taken}
        return [{"curriculum": state}] if self.active else []

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Restore the state from what `to_rows` returned; skip sources that no longer exist."""
        for row in rows:
            if "curriculum" in row:
                counts = row["curriculum"]["counts"]
                self.rates.counts = {name: (right, wrong) for name, (right, wrong) in counts.items()}
                self.taken |= {name: count for name, count in row["curriculum"]["taken"].items() if name in self.taken}


def require_curriculum(settings: SamplingSettings, problems: Sequence[Problem]) -> None:
    """Require that the curriculum and the weights of sources can choose from these problems; see `Curriculum`."""
    if answered := [problem for problem in problems if problem.answer]:  # the others are left out
        Curriculum(settings, answered, seed=0)


def _list_sources(problem: Problem) -> list[str]:
    """Return the names by which a problem may be weighted: its column `source`, and its task's or file's name.

    The latter is the part of its id before the last hyphen.
    """
    return [name for name in (str(problem.meta.get("source", "")), problem.id.rpartition("-")[0]) if name]


def _choose_source(problem: Problem, weights: Mapping[str, float]) -> str:
    """Return the source of a problem: its first name that has a weight, or its first name; "" without weights."""
    names = _list_sources(problem) if weights else []
    return next((name for name in names if name in weights), next(iter(names), ""))


def parse_mix(mix: Sequence[str], problems: Sequence[Problem]) -> dict[str, float]:
    """Parse the weights of sources, SOURCE=WEIGHT; a source that is not named has weight 1.

    Raises:
        UsageError: no problem has such a source, or every source has weight 0.
    """
    known = {name for problem in problems for name in _list_sources(problem)}
    weights = {}
    for entry in mix:
        name, _, value = entry.rpartition("=")
        name = name.strip()
        if name not in known:
            raise UsageError(
                f"sampling.mix: no training problem has the source '{name}'.{suggest_nearest(name, known)} "
                f"Sources: {', '.join(sorted(known)) or 'none'}."
            )
        weights[name] = float(value)
    if not any(weights.get(_choose_source(problem, weights), 1.0) for problem in problems):
        raise UsageError("sampling.mix: every source of the training problems has weight 0.")
    return weights


def read_difficulty(problem: Problem, column: str) -> float:
    """Read a problem's difficulty from a column: a number, or text that contains one, such as `Level 3`.

    A hyphen before the column's name means that high numbers are easy, as with pass rates.

    Raises:
        DataError: the problem has no such column, or no number in it.
    """
    sign, column = (-1, column[1:]) if column.startswith("-") else (1, column)
    value = problem.meta.get(column)
    found = None if isinstance(value, bool) else NUMBER.search(str(value)) if value is not None else None
    if found is None:
        raise DataError(
            f"sampling.curriculum=difficulty orders by the column {column}, and the training problem {problem.id} has "
            f"{'no such column' if value is None else f'no number in it ({value!r})'}. Set another column with "
            "sampling.curriculum_column, or use thompson, which measures the difficulty."
        )
    return sign * float(found[0])
