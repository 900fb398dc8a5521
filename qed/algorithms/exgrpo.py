"""ExGRPO (arXiv 2510.02245): the policy learns from its own earlier correct completions as well as from new ones.

A = r - mean r over the whole group, including the replayed completion
loss = - sum_t w_t A rho_t for sampled tokens, - sum_t w_t A f(r_t) for replayed ones,
r_t = exp(log pi - log pi_recorded), f(r) = r / (r + gamma) unless `shaping` says otherwise

Training starts as GRPO with a clip. Once more than `mixed_above` of a step's completions are correct, a share of each
step's problems comes from a pool of correct completions, with a problem's probability given by how many were correct,
and nothing is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from qed.algorithms.base import Average, ScoreFn, StepContext, require, select_correct
from qed.algorithms.parts import corrections, shaping
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.losses import fill_old_logps
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.shaping import TokenShaping
from qed.algorithms.parts.surrogates import Terms, mask_off_policy
from qed.randomness import draw_uniform
from qed.types import Groups, Request, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.rollout.replay import ReplayBuffer
    from qed.training.batch import Batch

# Sampling weight of a problem with k of n completions correct; `normal` has a standard deviation of 1 in k.
BUCKETS: dict[str, Callable[[int, int], float]] = {
    "normal": lambda k, n: math.exp(-((k - n / 2) ** 2) / 2),
    "linear": lambda k, n: k / n,
    "root": lambda k, n: math.sqrt(k / n),
    "capped": lambda k, n: min(k / n, 0.5),
}


@dataclass(frozen=True)
class ExGrpo(PolicyGradient):
    """Learns from its own earlier correct completions."""

    average: Average = "constant"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(normalize_std=False)
    mixed: bool = False
    """Whether replay has started; the run sets it once enough answers are correct."""
    mixed_above: float = 0.35
    """Start replay once more than this share of a step's answers is correct."""
    replay_share: float = 0.5
    """Share of a step's problems that comes from the replay pool."""
    shaping: TokenShaping = field(default_factory=TokenShaping)
    corrected: bool = True
    """Compute the ratio of a replayed token against the policy that sampled it; false: against the policy before the
    update."""
    bucket_weight: Literal["normal", "linear", "root", "capped"] = "normal"
    """How to weight problems with k of n answers correct: by a normal density around half of the group, by k/n, by its
    square root, or by k/n up to a half."""
    choice: Literal["entropy", "perplexity", "random", "newest"] = "entropy"
    """Which answer of a problem to replay: the one with the lowest entropy or perplexity under the policy, a random
    one, or the newest."""
    pool_per_problem: int = 8
    """Keep at most this many answers per problem, the newest ones; 0 keeps all."""
    pool_size: int = 4096
    """Keep at most this many answers in total, the newest ones; 0 keeps all."""
    max_age: int = 100
    """Delete answers older than this many steps; 0 deletes none."""
    retire: bool = True
    """From the next epoch on, skip problems of which every answer was correct."""

    defaults: ClassVar[dict[str, Any]] = {"learner.skip_norm": 500.0}

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(0 <= self.replay_share <= 1, "algorithm.replay_share must lie in [0, 1].")
        for name in ("pool_per_problem", "pool_size", "max_age"):
            require(getattr(self, name) >= 0, f"algorithm.{name} must not be negative.")

    @property
    def needs_old_logps(self) -> bool:
        """True if the ratio needs the policy before the update: only the learner can compute it for replayed tokens."""
        return super().needs_old_logps or not self.corrected

    @property
    def needs_correctness(self) -> bool:
        """True, because it replays correct completions."""
        return True

    def recall(
        self, pool: ReplayBuffer, wanted: int, group_size: int, context: StepContext, score: ScoreFn
    ) -> list[Request]:
        """Return requests for problems from the pool, each with an earlier completion first in its group."""
        if not self.mixed:
            return []
        address = (context.seed, "replay", context.step)
        weight = BUCKETS[self.bucket_weight]
        problems = pool.draw(int(self.replay_share * wanted), lambda k: weight(k, group_size), (*address, "problems"))
        chosen = self._choose([pool.answers[problem] for problem in problems], address, score)
        requests = self.plan([answer.problem for answer in chosen], group_size, context)
        return [replace(request, extra_completions=(answer,)) for request, answer in zip(requests, chosen, strict=True)]

    def _choose(self, pooled: Sequence[list[Rollout]], address: tuple[int | str, ...], score: ScoreFn) -> list[Rollout]:
        """Choose one completion per problem, by `choice`."""
        if self.choice == "newest":
            return [max(answers, key=lambda answer: answer.version) for answers in pooled]
        if self.choice == "random":
            return [answers[int(draw_uniform(*address, answers[0].problem.id) * len(answers))] for answers in pooled]
        several = [answer for answers in pooled if len(answers) > 1 for answer in answers]
        scores = score(several) if several else []
        # The lowest perplexity is the highest mean log-prob.
        figures = {
            id(answer): entropy if self.choice == "entropy" else -logp
            for answer, (entropy, logp) in zip(several, scores, strict=True)
        }
        return [min(answers, key=lambda answer: figures.get(id(answer), 0.0)) for answers in pooled]

    def remember(self, groups: Groups, pool: ReplayBuffer, version: int) -> None:
        """Store the correct completions of mixed groups; a problem with all completions correct counts as solved."""
        if not self.mixed:
            return
        for rollouts in groups:
            group = [rollout for rollout in rollouts if rollout.has_reward]
            correct = select_correct(group)
            if 0 < len(correct) < len(group):
                pool.keep(group, correct)
            elif correct and self.retire:
                pool.solved.add(group[0].problem.id)
        pool.trim(version, self.max_age, self.pool_per_problem, self.pool_size)

    def adapt(self, stats: Mapping[str, float]) -> Self:
        """Start replay permanently once enough completions are correct."""
        adapted = super().adapt(stats)
        return replace(adapted, mixed=True) if stats.get("accuracy", 0.0) > self.mixed_above else adapted

    def terms(self, batch: Batch, logps: Tensor) -> Terms:
        """Compute the surrogate of fresh tokens, clipped until replay starts, and - A f(r) of replayed ones."""
        logps = shaping.fill_masked(logps, batch)
        surrogate = replace(self.surrogate, clip_low=1.0, clip_high=math.inf) if self.mixed else self.surrogate
        if self.shaping.own_kind == "none":
            fresh = super(ExGrpo, replace(self, surrogate=surrogate)).terms(mask_off_policy(batch), logps)
        else:
            kept = corrections.drop_off_policy(batch, logps, self.correction.offpolicy_limit)
            fresh = shaping.compute_own_terms(kept, logps, self.shaping, surrogate.clip_low, surrogate.clip_high)
        # Without recorded log-probs, use the policy before the update in place of the one that sampled the token. If
        # that was not scored either, the column holds 0, and the current policy is used.
        old = fill_old_logps(shaping.fill_masked(batch.old_logps, batch), logps)
        old = logps.detach().where((batch.expert == 1) & (old == 0), old)
        recorded = fill_old_logps(batch.behaviour_logps, old) if self.corrected else old
        weight, bounds = self.shaping.bound(self.shaping.shape_given(logps - recorded))
        terms, stats = shaping.join_terms(batch, fresh, weight, bounds)
        return terms, stats | ({"clip/dropped": batch.prepared.sum()} if self.shaping.drop_above else {})
