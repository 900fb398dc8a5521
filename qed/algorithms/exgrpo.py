"""ExGRPO (arXiv 2510.02245): the policy learns from its own earlier successes beside fresh answers.

A = r - mean r over the whole group, the replayed answer included
loss = - sum_t w_t A rho_t for sampled tokens, - sum_t w_t A r_t / (r_t + gamma) for replayed ones,
r_t = exp(log pi - log pi_recorded)

It begins as GRPO with a clip. Once `mixed_above` of a step's answers are right, a share of the problems of each step
comes from a pool of right answers, drawn by how many of a problem's answers were right, and nothing is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from qed.algorithms.base import Average, ScoreFn, StepContext, require, select_correct
from qed.algorithms.parts import shaping
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.losses import fill_old_logps
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Terms, mask_given
from qed.randomness import draw_uniform
from qed.types import Groups, Request, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.rollout.replay import ReplayBuffer
    from qed.training.batch import Batch

# The weight of a problem of whose n answers k were right; in units of k where the density has a deviation of 1.
BUCKETS: dict[str, Callable[[int, int], float]] = {
    "normal": lambda k, n: math.exp(-((k - n / 2) ** 2) / 2),
    "linear": lambda k, n: k / n,
    "root": lambda k, n: math.sqrt(k / n),
    "capped": lambda k, n: min(k / n, 0.5),
}


@dataclass(frozen=True)
class ExGrpo(PolicyGradient):
    """Learns from its own earlier successes."""

    average: Average = "constant"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    mixed: bool = False
    """Replay from now on; set by the run itself once enough answers are right."""
    mixed_above: float = 0.35
    """Replay begins when a larger share of a step's answers is right."""
    replay_share: float = 0.5
    """The share of a step's problems that comes from the pool."""
    gamma: float = 0.1
    """Of the shaped ratio of replayed tokens, r / (r + gamma)."""
    corrected: bool = True
    """The ratio of a replayed token is to the policy that wrote it; without, to the policy before the update."""
    bucket_weight: Literal["normal", "linear", "root", "capped"] = "normal"
    """How problems of k right answers are weighed: by a normal density around half of the group, k/n, its square root,
    or k/n up to a half."""
    choice: Literal["entropy", "perplexity", "random", "newest"] = "entropy"
    """Which of a problem's answers is replayed: of lowest entropy or perplexity under the policy, any, the newest."""
    pool_per_problem: int = 8
    """Answers kept of each problem, the newest; 0 keeps all."""
    pool_size: int = 4096
    """Answers kept in all, the newest; 0 keeps all."""
    max_age: int = 100
    """Answers older than so many steps are forgotten; 0 forgets none."""
    retire: bool = True
    """Problems of which every answer was right are not asked again after the epoch."""

    defaults: ClassVar[dict[str, Any]] = {"learner.skip_norm": 500.0}

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        require(0 <= self.replay_share <= 1, "algorithm.replay_share must lie in [0, 1].")
        require(self.gamma > 0, "algorithm.gamma must be above 0.")
        for name in ("pool_per_problem", "pool_size", "max_age"):
            require(getattr(self, name) >= 0, f"algorithm.{name} must not be negative.")

    @property
    def needs_old_logps(self) -> bool:
        """Replayed tokens have no log-probs of the policy before the update but the learner's own."""
        return super().needs_old_logps or not self.corrected

    @property
    def needs_correctness(self) -> bool:
        """Right answers are what it replays."""
        return True

    def recall(
        self, pool: ReplayBuffer, wanted: int, group_size: int, context: StepContext, score: ScoreFn
    ) -> list[Request]:
        """Problems from the pool, an earlier answer first in each group."""
        if not self.mixed:
            return []
        address = (context.seed, "replay", context.step)
        weight = BUCKETS[self.bucket_weight]
        drawn = pool.draw(int(self.replay_share * wanted), lambda k: weight(k, group_size), (*address, "problems"))
        chosen = self._choose([pool.answers[problem] for problem in drawn], address, score)
        asked = self.plan([answer.problem for answer in chosen], group_size, context)
        return [replace(request, extra_completions=(answer,)) for request, answer in zip(asked, chosen, strict=True)]

    def _choose(self, kept: Sequence[list[Rollout]], address: tuple[int | str, ...], score: ScoreFn) -> list[Rollout]:
        """One of the answers to each problem."""
        if self.choice == "newest":
            return [max(answers, key=lambda answer: answer.version) for answers in kept]
        if self.choice == "random":
            return [answers[int(draw_uniform(*address, answers[0].problem.id) * len(answers))] for answers in kept]
        several = [answer for answers in kept if len(answers) > 1 for answer in answers]
        looks = score(several) if several else []
        # The lowest perplexity is the highest mean log-prob.
        figures = {
            id(answer): entropy if self.choice == "entropy" else -logp
            for answer, (entropy, logp) in zip(several, looks, strict=True)
        }
        return [min(answers, key=lambda answer: figures.get(id(answer), 0.0)) for answers in kept]

    def remember(self, groups: Groups, pool: ReplayBuffer, version: int) -> None:
        """Keep the right answers of groups of which some were wrong; a group without a wrong one is solved."""
        if not self.mixed:
            return
        for whole in groups:
            group = [rollout for rollout in whole if rollout.has_reward]
            right = select_correct(group)
            if 0 < len(right) < len(group):
                pool.keep(group, right)
            elif right and self.retire:
                pool.solved.add(group[0].problem.id)
        pool.trim(version, self.max_age, self.pool_per_problem, self.pool_size)

    def adapt(self, stats: Mapping[str, float]) -> Self:
        """Replay begins for good when enough of the answers were right."""
        adapted = super().adapt(stats)
        return replace(adapted, mixed=True) if stats.get("accuracy", 0.0) > self.mixed_above else adapted

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """The surrogate of fresh tokens, clipped until replay begins, and - A r / (r + gamma) of replayed ones."""
        logps = shaping.fill_masked(logps, batch)
        free = replace(self.surrogate, clip_low=1.0, clip_high=math.inf)
        bound = replace(self, surrogate=free) if self.mixed else self
        fresh = super(ExGrpo, bound).terms(mask_given(batch), logps)
        # Without a record, the best guess at who wrote a token is the policy before the update; where that has not
        # been scored either, it is the policy as it is, and what stands there is 0.
        old = fill_old_logps(shaping.fill_masked(batch.old_logps, batch), logps)
        old = logps.detach().where((batch.expert == 1) & (old == 0), old)
        recorded = fill_old_logps(batch.behaviour_logps, old) if self.corrected else old
        return shaping.join_terms(batch, fresh, shaping.shape_probability(logps - recorded, self.gamma), {})
