"""What the online family shares: an advantage estimator, a surrogate, an average, a KL and an entropy bonus.

A paper is a file that sets these; each can be set by itself wherever the mathematics allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from qed.algorithms.base import Algorithm, Average, StepContext, require
from qed.algorithms.parts import (
    corrections,
    crediting,
    estimators,
    exploration,
    losses,
    regularizer,
    requirements,
    surrogates,
)
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.corrections import Correction
from qed.algorithms.parts.regularizer import Regularizer
from qed.algorithms.parts.scales import Scale, compute_factor
from qed.algorithms.parts.selection import Selection
from qed.algorithms.parts.surrogates import Surrogate
from qed.config.field_names import find_shadowed, flatten_fields
from qed.types import Advantage, Group, Groups, Problem, Request, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class PolicyGradient(Algorithm):
    """Raises the probability of tokens by their advantage."""

    average: Average = "sequence"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    scale: Scale = "qed"
    """Multiply the loss by a constant, so that it is as large as another library's with the same average."""
    advantage: AdvantageEstimator = AdvantageEstimator()
    surrogate: Surrogate = Surrogate()
    correction: Correction = Correction()
    regularizer: Regularizer = Regularizer()
    selection: Selection = Selection()

    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        requirements.require_compatible(self.advantage, self.surrogate, self.correction, self.regularizer)
        for name, path in find_shadowed(flatten_fields(self)).items():
            part, _, inner = path.partition(".")
            kind = type(getattr(self, part)).__name__
            require(
                False,
                f"{type(self).__name__} has a field {name}, which would hide algorithm.{path}. For another default "
                f"write {part}: {kind} = {kind}({inner}=...); for a setting of your own take another name.",
            )

    @property
    def reference(self) -> bool:
        """A reference model is needed for the KL alone."""
        return self.regularizer.kl > 0

    @property
    def reference_moves(self) -> tuple[int, float]:
        """As the settings say."""
        return self.regularizer.reference_every, self.regularizer.reference_mix

    @property
    def needs_old_logps(self) -> bool:
        """A correction compares the sampler's log-probs with the learner's own; a bypass wants the sampler's alone."""
        return self.correction.rescores

    @property
    def has_ratio(self) -> bool:
        """Every surrogate but the plain one; that of dppo, and a bypass, compare with the sampler on purpose."""
        return self.surrogate.kind not in ("plain", "dppo") and self.correction.kind != "bypass"

    @property
    def scored_before_credit(self) -> bool:
        """A KL in the reward compares the old policy with the reference."""
        return self.regularizer.kl_in_reward

    @property
    def needs_correctness(self) -> bool:
        """Dynamic sampling wants groups with right answers and wrong ones."""
        return self.selection.dynamic_sampling

    @property
    def two_pass(self) -> bool:
        """The quantile of the entropy is of all rows."""
        return self.selection.top_entropy < 1

    def check(self, group_size: int) -> None:
        """Refuse groups of one answer where answers are compared within their group."""
        estimator = self.advantage.estimator
        require(
            group_size > 1 or estimator not in estimators.COMPARING,
            f"sampling.group_size is 1, but algorithm.estimator={estimator} compares the answers to a problem "
            "with each other, so that every advantage would be 0. Sample at least 2, or take the estimator none, "
            "returns or remax.",
        )

    def plan(self, problems: Sequence[Problem], group_size: int, context: StepContext) -> list[Request]:
        """Beside the usual answers the greedy one where it is the baseline."""
        requests = super().plan(problems, group_size, context)
        return [replace(request, greedy=self.advantage.estimator == "remax") for request in requests]

    def filter_groups(self, groups: Groups) -> list[Group]:
        """With dynamic sampling the groups in which some answers are right and some wrong, before any shaping."""
        return [group for group in groups if not self.selection.dynamic_sampling or crediting.is_mixed(group)]

    def enough(self, groups: Groups, wanted: int, rounds: int) -> bool:
        """One round; with dynamic sampling until there are enough groups, or the rounds are used up."""
        if not self.selection.dynamic_sampling:
            return super().enough(groups, wanted, rounds)
        return len(groups) >= wanted or rounds >= self.selection.max_rounds

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """The estimator's advantages, of all groups of the step together."""
        return crediting.compute_advantages(groups, self.advantage, self.regularizer, self.advantages)

    def advantages(self, rewards: Tensor) -> Tensor:
        """The advantages of one group where the estimator reads nothing but its rewards."""
        own = self.advantage
        return estimators.compute_group_advantages(own.estimator, rewards, own.normalize_std, own.std_epsilon)

    def rows(self, groups: Groups) -> list[Rollout]:
        """The answers that may be trained: not the greedy baseline, and not the truncated where they are masked."""
        masked = self.selection.mask_truncated
        return [
            rollout
            for rollout in super().rows(groups)
            if rollout.source != "greedy" and not (masked and rollout.stop_reason == "length")
        ]

    def weights(self, batch: Batch, length: int) -> Tensor:
        """The average's weights, times the constant of the `scale`."""
        return super().weights(batch, length) * compute_factor(self.scale, self.average, len(batch))

    def compute_metrics(self, batch: Batch) -> dict[str, float]:
        """What the correction meets, if there is one."""
        return corrections.measure_correction(batch, self.correction) if self.needs_old_logps else {}

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """The rows as corrected for what sampled them, with an advantage only on the tokens of `top_entropy`."""
        batch = corrections.apply_correction(batch, self.correction, in_ratio=self.surrogate.kind == "vespo")
        if self.selection.top_entropy == 1 or entropy is None:
            return batch
        return exploration.keep_top_entropy(batch, entropy, self.selection.top_entropy)

    def has_gradient(self, batch: Batch) -> Tensor:
        """Rows with an advantage; every row where KL or entropy has a weight in the loss, or is steered."""
        every = self.surrogate.pulls_every_row or self.regularizer.acts_on_every_row
        return batch.mask.any(1) if every else super().has_gradient(batch)

    def terms(self, batch: Batch, logps: Tensor) -> surrogates.Terms:
        """What each token adds to the policy loss, [B, T], before it is weighted, and sums for the metrics."""
        if self.correction.offpolicy_limit:
            own, limit = surrogates.find_written(batch), self.correction.offpolicy_limit
            kept = corrections.find_on_policy(logps, batch.sampled_logps, batch.advantages, own, limit)
            batch = replace(batch, advantages=batch.advantages * kept)
        return surrogates.compute_terms(batch, logps, self.surrogate)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The surrogate, with the KL and the entropy where they have a weight, all averaged by the same weights."""
        terms, stats = self.terms(batch, logps)
        loss, held = (batch.weights * terms).sum(), self.regularizer
        if held.kl:
            penalty = regularizer.compute_penalty(batch, logps, held, self.surrogate.row_ratios)
            stats["kl/ref"] = penalty.detach().sum()
            loss = loss + held.kl * (batch.weights * penalty).sum() if held.kl_in_loss else loss
        if held.bonus:
            # Tokens that others wrote are left out: to be unsure of them is no exploration.
            own = surrogates.mask_given(batch).mask
            loss = loss - held.bonus * (batch.weights * losses.mask_values(entropy, own)).sum()
        return loss, stats

    def adapt(self, stats: Mapping[str, float]) -> Self:
        """The weights of the KL and of the entropy bonus for the next step, where they have targets."""
        adapted = self.regularizer.adapt(stats)
        return self if adapted is self.regularizer else replace(self, regularizer=adapted)
