"""What the online family shares: an advantage estimator, a surrogate, an average, a KL and an entropy bonus.

A paper is a file that sets these; each can be set by itself wherever the mathematics allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from qed.algorithms.base import Algorithm, Average, Moment, require
from qed.algorithms.parts import crediting, divergences, estimators, exploration, surrogates
from qed.algorithms.parts.divergences import Divergence
from qed.algorithms.parts.estimators import Estimator
from qed.algorithms.parts.surrogates import Surrogate
from qed.types import Advantage, Group, Groups, Problem, Request, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.batch import Batch


@dataclass(frozen=True)
class PolicyGradient(Algorithm):
    """Raises the probability of tokens by their advantage."""

    average: Average = "sequence"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    estimator: Estimator = "group"
    """How rewards become advantages."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    std_over: Literal["group", "batch"] = "group"
    """Which rewards the standard deviation is of: the group's, or all of the step's; the mean is the group's."""
    std_epsilon: float = 1e-6
    """Added to the standard deviation."""
    whiten: bool = False
    """Give the advantages of all tokens of the step the mean 0 and the variance 1."""
    discount: float = 1.0
    """What a reward counts one token earlier, for the estimator returns."""
    dynamic_sampling: bool = False
    """Sample until enough groups have right answers and wrong ones; the others are recorded and dropped."""
    max_rounds: int = 10
    """Rounds of dynamic sampling after which a step goes on with the groups it has."""
    mask_truncated: bool = False
    """Leave answers that reached the longest length out of the loss and its average; they stay in their group's
    statistics."""
    surrogate: Surrogate = "clip"
    """What is minimised for a token of a known advantage."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    kl: float = 0.0
    """Weight of the KL to the reference model; 0 loads none."""
    kl_estimator: Divergence = "k3"
    """How a token's KL is estimated; with a plus the value is that estimator's and the gradient that of k2."""
    kl_place: Literal["loss", "reward"] = "loss"
    """Whether the KL is a term of the loss, or is taken off the reward of every token before the advantages."""
    kl_importance: bool = False
    """Multiply the KL in the loss by the ratio of the policy to the one that sampled."""
    kl_target: float = 0.0
    """The KL per token that its weight is steered to, beginning from `kl`; 0 keeps the weight."""
    kl_horizon: int = 10000
    """Answers over which the KL's weight is steered."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    entropy_target: float = 0.0
    """The entropy per token below which the bonus grows by 0.005 a step, and above which it shrinks and rests; 0 keeps
    the weight."""
    entropy_on: bool = True
    """Whether a bonus with a target counts in the coming step; the run sets it by the entropy of each step."""
    top_entropy: float = 1.0
    """The share of the step's tokens, those of the highest entropy, that the policy loss is kept on."""

    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    def __post_init__(self) -> None:
        """Refuse numbers that no run can mean."""
        require(0 <= self.clip_low <= 1, "algorithm.clip_low must lie in [0, 1].")
        require(self.clip_high >= 0, "algorithm.clip_high must not be negative.")
        self._check_advantages()
        self._check_terms()

    def _check_advantages(self) -> None:
        require(self.std_epsilon >= 0, "algorithm.std_epsilon must not be negative.")
        require(0 <= self.discount <= 1, "algorithm.discount must lie in [0, 1].")
        require(self.max_rounds >= 1, "algorithm.max_rounds must be at least 1.")
        require(
            self.discount == 1 or self.estimator == "returns",
            "algorithm.discount is read by the estimator returns alone; set algorithm.estimator=returns.",
        )
        require(
            self.std_over == "group" or (self.estimator == "group" and self.normalize_std),
            "algorithm.std_over=batch goes with the estimator group and algorithm.normalize_std.",
        )

    def _check_terms(self) -> None:
        require(self.kl >= 0, "algorithm.kl must not be negative.")
        require(self.kl_target >= 0, "algorithm.kl_target must not be negative.")
        require(self.kl_horizon >= 1, "algorithm.kl_horizon must be at least 1.")
        require(
            self.kl_target == 0 or self.kl > 0,
            "algorithm.kl_target steers the weight algorithm.kl, which must be above 0 to begin with.",
        )
        require(
            not (self.kl_importance and self.kl_place == "reward"),
            "algorithm.kl_importance is of the KL in the loss; in the reward there is no ratio to multiply by.",
        )
        require(
            not (self.estimator == "gdpo" and self.kl_place == "reward"),
            "The estimator gdpo normalises the parts of the reward, and a KL is none: use algorithm.kl_place=loss.",
        )
        require(self.entropy_target >= 0, "algorithm.entropy_target must not be negative.")
        require(0 < self.top_entropy <= 1, "algorithm.top_entropy must lie in (0, 1].")

    @property
    def reference(self) -> bool:
        """A reference model is needed for the KL alone."""
        return self.kl > 0

    @property
    def scored_before_credit(self) -> bool:
        """A KL in the reward compares the old policy with the reference."""
        return self.kl > 0 and self.kl_place == "reward"

    @property
    def two_pass(self) -> bool:
        """The quantile of the entropy is of all rows."""
        return self.top_entropy < 1

    @property
    def bonus(self) -> float:
        """The weight of the entropy in this step's loss."""
        return self.entropy if self.entropy_on or not self.entropy_target else 0.0

    def check(self, group_size: int) -> None:
        """Refuse groups of one answer where answers are compared within their group."""
        require(
            group_size > 1 or self.estimator not in estimators.COMPARING,
            f"sampling.group_size is 1, but algorithm.estimator={self.estimator} compares the answers to a problem "
            "with each other, so that every advantage would be 0. Sample at least 2, or take the estimator none, "
            "returns or remax.",
        )

    def plan(self, problems: Sequence[Problem], group_size: int, moment: Moment) -> list[Request]:
        """Beside the usual answers the greedy one where it is the baseline."""
        requests = super().plan(problems, group_size, moment)
        return [replace(request, greedy=self.estimator == "remax") for request in requests]

    def kept(self, groups: Groups) -> list[Group]:
        """With dynamic sampling the groups in which some answers are right and some wrong, before any shaping."""
        return [group for group in groups if not self.dynamic_sampling or crediting.mixed(group)]

    def enough(self, groups: Groups, wanted: int, rounds: int) -> bool:
        """One round; with dynamic sampling until there are enough groups, or the rounds are used up."""
        if not self.dynamic_sampling:
            return super().enough(groups, wanted, rounds)
        return len(groups) >= wanted or rounds >= self.max_rounds

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """The estimator's advantages, of all groups of the step together."""
        return crediting.credit(self, groups)

    def advantages(self, rewards: Tensor) -> Tensor:
        """The advantages of one group where the estimator reads nothing but its rewards."""
        return estimators.of_group(self.estimator, rewards, self.normalize_std, self.std_epsilon)

    def rows(self, groups: Groups) -> list[Rollout]:
        """The answers that may be trained: not the greedy baseline, and not the truncated where they are masked."""
        return [
            rollout
            for rollout in super().rows(groups)
            if rollout.source != "greedy" and not (self.mask_truncated and rollout.stop_reason == "length")
        ]

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """With `top_entropy` only those tokens keep an advantage; the KL and the entropy bonus stay on all."""
        if self.top_entropy == 1 or entropy is None:
            return batch
        return exploration.keep_top(batch, entropy, self.top_entropy)

    def live(self, batch: Batch) -> Tensor:
        """Rows with an advantage; every row where KL or entropy has a weight in the loss, or is steered."""
        everywhere = self.kl_target or self.entropy_target or self.bonus or (self.kl and self.kl_place == "loss")
        return batch.mask.any(1) if everywhere else super().live(batch)

    def terms(self, batch: Batch, logps: Tensor) -> surrogates.Terms:
        """What each token adds to the policy loss, [B, T], before it is weighted, and sums for the metrics."""
        if self.surrogate == "plain":
            return surrogates.plain(batch, logps)
        return surrogates.clip(batch, logps, self.clip_low, self.clip_high)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The surrogate, with the KL and the entropy where they have a weight, all averaged by the same weights."""
        terms, stats = self.terms(batch, logps)
        loss = (batch.weights * terms).sum()
        if self.kl:
            penalty = self._penalty(batch, logps)
            stats["kl/ref"] = penalty.detach().sum()
            loss = loss + self.kl * (batch.weights * penalty).sum() if self.kl_place == "loss" else loss
        if self.bonus:
            # Tokens that others wrote are left out: to be unsure of them is no exploration.
            own = batch.mask.bool() & (batch.expert == 0)
            loss = loss - self.bonus * (batch.weights * entropy.where(own, 0.0)).sum()
        return loss, stats

    def _penalty(self, batch: Batch, logps: Tensor) -> Tensor:
        """The KL of every token; in the reward it is the old policy's, and here only measured."""
        chosen = batch.mask.bool()
        policy = logps if self.kl_place == "loss" else batch.old_logps
        penalty = divergences.divergence(self.kl_estimator, (policy - batch.ref_logps).where(chosen, 0.0))
        if self.kl_importance:
            penalty = penalty * (logps - batch.old_logps).where(chosen, 0.0).exp()
        return penalty

    def adapted(self, stats: Mapping[str, float]) -> PolicyGradient:
        """The weights of the KL and of the entropy bonus for the next step, where they have targets."""
        changes: dict[str, Any] = {}
        if self.kl_target and "kl/ref" in stats:
            rows = stats.get("train/rows", 0)
            changes["kl"] = divergences.controlled(self.kl, stats["kl/ref"], self.kl_target, rows, self.kl_horizon)
        if self.entropy_target and "policy/entropy" in stats:
            measured = stats["policy/entropy"]
            changes["entropy"] = exploration.adapted(self.entropy, measured, self.entropy_target)
            changes["entropy_on"] = measured <= self.entropy_target
        return replace(self, **changes) if changes else self
