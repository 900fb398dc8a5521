"""What the online family shares: an advantage estimator, a surrogate, an average, a KL and an entropy bonus.

A paper is a file that sets these; each can be set by itself wherever the mathematics allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from qed.algorithms.base import Algorithm, Average, Moment, require
from qed.algorithms.parts import (
    corrections,
    crediting,
    divergences,
    estimators,
    exploration,
    losses,
    requirements,
    surrogates,
)
from qed.algorithms.parts.corrections import Correction, Rejection
from qed.algorithms.parts.divergences import Divergence
from qed.algorithms.parts.estimators import Estimator
from qed.algorithms.parts.losses import CispoClip
from qed.algorithms.parts.scales import Scale, factor
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
    """The ratio is clipped below at 1 - clip_low; in gmpo its logarithm, in dppo the probability's change."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high; in gmpo its logarithm, in dppo the probability's change."""
    clip_dual: float = 0.0
    """For a negative advantage A the loss is at most -A times this (dual clip; verl: 3); 0 does not bound it."""
    ratio_clamp: float = 0.0
    """Log-ratios are kept within plus or minus this many nats (verl and OpenRLHF: 20); 0 leaves them as they are."""
    cispo_clip: CispoClip = "both"
    """Which side cispo clips: both, only above at 1 + clip_high, or as TRL only above at clip_high itself."""
    sapo_temperatures: tuple[float, float] = (1.0, 1.05)
    """How fast sapo's gate closes, for positive advantages and for the others."""
    vespo_shape: tuple[float, float, float, float] = (2.0, 3.0, 3.0, 2.0)
    """vespo's k and lambda for advantages of 0 or more, then for negative ones."""
    dppo_square: float = 1e-3
    """Weight of dppo's squared log-ratio to the sampler, on all tokens."""
    correction: Correction = "none"
    """What exp(old - sampled) does to the policy loss: weigh it, bounded; bypass: the ratio is to the sampler."""
    correction_low: float = 0.0
    """The smallest weight of a correction."""
    correction_high: float = 2.0
    """The largest weight of a correction."""
    correction_normalize: bool = False
    """Divide a correction's weights by their mean over the whole step."""
    rejection: Rejection = "none"
    """Drop tokens or rows by a measure of log(old / sampled): k1, k2 or k3 of a token, or a row's sum, mean or max."""
    rejection_low: float = 0.5
    """The smallest sampled / old that k1 keeps."""
    rejection_high: float = 2.0
    """The largest sampled / old that k1 keeps; the largest k2 or k3."""
    offpolicy_limit: float = 0.0
    """Drop rows of negative advantage whose mean of sampled - new log-probs is above this; 0 drops none."""
    scale: Scale = "qed"
    """Multiply the loss by a constant, so that it is as large as another library's with the same average."""
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
    reference_every: int = 0
    """Steps after which the reference model of the KL moves to the policy, as ProRL resets it; 0 never moves it."""
    reference_mix: float = 1.0
    """How far it moves: 1 makes it the policy as it is then, less mixes their weights."""
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
        super().__post_init__()
        requirements.advantages(self)
        requirements.regularisers(self)
        requirements.surrogate(self)

    @property
    def reference(self) -> bool:
        """A reference model is needed for the KL alone."""
        return self.kl > 0

    @property
    def reference_moves(self) -> tuple[int, float]:
        """As the settings say."""
        return self.reference_every, self.reference_mix

    @property
    def rescored(self) -> bool:
        """A correction compares the sampler's log-probs with the learner's own; a bypass wants the sampler's alone."""
        return self.correction not in ("none", "bypass") or self.rejection != "none"

    @property
    def has_ratio(self) -> bool:
        """Every surrogate but the plain one; that of dppo, and a bypass, compare with the sampler on purpose."""
        return self.surrogate not in ("plain", "dppo") and self.correction != "bypass"

    @property
    def scored_before_credit(self) -> bool:
        """A KL in the reward compares the old policy with the reference."""
        return self.kl > 0 and self.kl_place == "reward"

    @property
    def judged(self) -> bool:
        """Dynamic sampling wants groups with right answers and wrong ones."""
        return self.dynamic_sampling

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

    def weights(self, batch: Batch, length: int) -> Tensor:
        """The average's weights, times the constant of the `scale`."""
        return super().weights(batch, length) * factor(self.scale, self.average, len(batch))

    def measured(self, batch: Batch) -> dict[str, float]:
        """What the correction meets, if there is one."""
        return corrections.measured(batch, self) if self.rescored else {}

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """The rows as corrected for what sampled them, with an advantage only on the tokens of `top_entropy`."""
        batch = corrections.corrected(batch, self)
        if self.top_entropy == 1 or entropy is None:
            return batch
        return exploration.keep_top(batch, entropy, self.top_entropy)

    def live(self, batch: Batch) -> Tensor:
        """Rows with an advantage; every row where KL or entropy has a weight in the loss, or is steered."""
        pulled = self.surrogate == "dppo" and self.dppo_square > 0
        held = self.bonus or (self.kl and self.kl_place == "loss")
        steered = self.kl_target or self.entropy_target
        return batch.mask.any(1) if pulled or held or steered else super().live(batch)

    def terms(self, batch: Batch, logps: Tensor) -> surrogates.Terms:
        """What each token adds to the policy loss, [B, T], before it is weighted, and sums for the metrics."""
        if self.offpolicy_limit:
            written, limit = surrogates.sampled(batch), self.offpolicy_limit
            kept = corrections.on_policy_rows(logps, batch.sampled_logps, batch.advantages, written, limit)
            batch = replace(batch, advantages=batch.advantages * kept)
        return surrogates.terms(batch, logps, self)

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
            own = surrogates.own_tokens(batch).mask
            loss = loss - self.bonus * (batch.weights * losses.shielded(entropy, own)).sum()
        return loss, stats

    def _penalty(self, batch: Batch, logps: Tensor) -> Tensor:
        """The KL of every token; in the reward it is the old policy's, and here only measured.

        Tokens that others wrote have none: of what the policy did not sample it is no estimate.
        """
        policy = logps if self.kl_place == "loss" else losses.known(batch.old_logps, logps)
        own = surrogates.own_tokens(batch).mask
        penalty = divergences.divergence(self.kl_estimator, losses.shielded(policy - batch.ref_logps, own))
        if self.kl_importance:
            log_ratio = losses.log_ratios(logps, batch.old_logps, own)
            rows = self.surrogate in ("gspo", "gspo_token")
            penalty = penalty * (losses.sequence_log_ratios(log_ratio, own) if rows else log_ratio).exp()
        return penalty

    def adapted(self, stats: Mapping[str, float]) -> Self:
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
