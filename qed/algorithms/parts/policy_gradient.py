"""The base class of policy-gradient algorithms: advantage estimator, surrogate, average, KL and entropy bonus.

The file of each algorithm sets their defaults; every part can be changed separately if the mathematics allows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from qed.algorithms.base import Algorithm, Average, Divergence, StepContext, compute_token_weights, require
from qed.algorithms.parts import (
    corrections,
    crediting,
    estimators,
    exploration,
    imitation,
    losses,
    regularizer,
    requirements,
    surrogates,
)
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.corrections import Correction
from qed.algorithms.parts.distillation import Distillation
from qed.algorithms.parts.guidance import Guidance
from qed.algorithms.parts.mixture import split_group
from qed.algorithms.parts.regularizer import Regularizer
from qed.algorithms.parts.scales import Scale, compute_factor
from qed.algorithms.parts.selection import Selection
from qed.algorithms.parts.shaping import TokenShaping
from qed.algorithms.parts.surrogates import Surrogate
from qed.config.field_names import find_shadowed, flatten_fields
from qed.types import Advantage, Group, Groups, Problem, Request, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


# Methods that read the settings of a part.
READERS = {
    "advantage": ("advantages", "credit"),
    "surrogate": ("terms", "loss"),
    "correction": ("terms", "loss"),
    "selection": ("enough", "filter_groups"),
    "critic": ("loss",),
    "distillation": ("credit", "loss", "teacher_divergence"),
}


@dataclass(frozen=True)
class PolicyGradient(Algorithm):
    """Policy gradient: changes the probability of tokens in proportion to their advantage.

    An algorithm with demonstrations has a field `guidance`, one with a teacher has `distillation`, and one that
    weights given tokens by their probability has `shaping`.
    """

    average: Average = "sequence"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    scale: Scale = "qed"
    """Multiply the loss by a constant, so that it matches another library's loss with the same average."""
    advantage: AdvantageEstimator = AdvantageEstimator()
    surrogate: Surrogate = Surrogate()
    correction: Correction = Correction()
    regularizer: Regularizer = Regularizer()
    selection: Selection = Selection()

    # Whether rows with demonstration tokens are imitated instead of using the surrogate; see `parts.imitation`.
    imitates: ClassVar[bool] = False
    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        requirements.require_compatible(self.advantage, self.surrogate, self.correction, self.regularizer)
        requirements.require_critic(self.advantage, self.value_model)
        own = type(self)
        if own.advantages is not PolicyGradient.advantages and own.credit is PolicyGradient.credit:
            requirements.require_call_of_advantages(self.advantage, own.__name__, self.imitates)
        if self.imitates:
            requirements.require_split_statistics(self.advantage, self.regularizer)
        for name, path in find_shadowed(flatten_fields(self), vars(own).keys() - own.__dataclass_fields__).items():
            part, _, inner = path.partition(".")
            kind = type(getattr(self, part)).__name__
            require(
                False,
                f"{type(self).__name__} has {name}, which would hide algorithm.{path}. To change the default, "
                f"write {part}: {kind} = {kind}({inner}=...); for your own setting or method, choose another name.",
            )

    @property
    def unread(self) -> dict[str, str]:
        """The settings that have no effect, including those of the parts.

        A part is skipped if a user-defined subclass overrides methods that may read it.
        """
        parts = ["advantage", "surrogate", "correction", "regularizer", "selection"]
        parts += [part for part in ("critic", "distillation") if hasattr(self, part)]
        own = {key for kind in type(self).__mro__ if not kind.__module__.startswith("qed.") for key in vars(kind)}
        kept = [part for part in parts if not own.intersection(READERS.get(part, ()))]
        inner = {f"{part}.{name}": why for part in kept for name, why in self._find_unread_in(part).items()}
        return super().unread | inner | self._find_unread_without_reward(kept)

    def _find_unread_in(self, part: str) -> dict[str, str]:
        """Return the settings of a part that have no effect; a shaped ratio of sampled tokens uses only the clip."""
        shaping = _find_shaping(self)
        if part != "surrogate" or shaping is None or shaping.own_kind == "none":
            unread: dict[str, str] = getattr(self, part).unread
            return unread
        names = {one.name for one in fields(self.surrogate)} - {"kind", *surrogates.CLIP}
        return dict.fromkeys(sorted(names), f"shaping.own_kind={shaping.own_kind}")

    def _find_unread_without_reward(self, parts: Sequence[str]) -> dict[str, str]:
        """Return the settings of these parts that distillation without a reward does not read."""
        distillation = _find_distillation(self)
        if "distillation" not in parts or distillation is None or distillation.reward:
            return {}
        silent = ["advantage"]
        if distillation.over_vocabulary and not (self.surrogate.pulls_every_row or self.regularizer.kl_importance):
            silent.append("surrogate")
        names = {f"{part}.{one.name}" for part in silent if part in parts for one in fields(getattr(self, part))}
        if self.regularizer.kl_in_reward and "advantage" in parts:
            names |= {f"regularizer.{name}" for name in ("kl", "kl_estimator", "kl_place", "kl_target")}
        planned = {"advantage.estimator"} if self.advantage.estimator == "remax" else set()  # requests another answer
        return dict.fromkeys(sorted(names - planned), "reward=0")

    @property
    def moving_weights(self) -> dict[str, float]:
        """The weights of the KL and of the entropy bonus, if they have targets."""
        weights, chosen = {}, self.regularizer
        if chosen.kl_target:
            weights["kl/weight"] = chosen.kl
        if chosen.entropy_target:
            weights["policy/entropy_weight"] = chosen.bonus
        return weights

    @property
    def demonstrations(self) -> Guidance | None:
        """The settings of demonstrations that join the groups; None without a field `guidance`."""
        guidance: Guidance | None = getattr(self, "guidance", None)
        return guidance

    @property
    def teacher_divergence(self) -> Divergence | None:
        """The divergence over the vocabulary, unless only sampled tokens are compared."""
        distillation = _find_distillation(self)
        return None if distillation is None else distillation.over_vocabulary

    @property
    def reads_rewards(self) -> bool:
        """Whether the reward has a weight; a teacher alone needs none."""
        distillation = _find_distillation(self)
        return distillation is None or distillation.reward > 0

    @property
    def guided(self) -> bool:
        """Whether the guidance settings use demonstrations."""
        return self.demonstrations is not None and self.demonstrations.active

    @property
    def reference(self) -> bool:
        """Whether the KL needs a reference model."""
        return self.regularizer.kl > 0

    @property
    def reference_moves(self) -> tuple[int, float]:
        """The settings `reference_every` and `reference_mix`."""
        return self.regularizer.reference_every, self.regularizer.reference_mix

    @property
    def needs_old_logps(self) -> bool:
        """Whether a correction compares the sampler's log-probs with the learner's; `bypass` does not."""
        return self.correction.rescores

    @property
    def has_ratio(self) -> bool:
        """False for plain, and for dppo, ipo and `bypass`, which compare with the sampler; true if it is shaped."""
        shaping = _find_shaping(self)
        if shaping is not None and shaping.own_kind != "none":
            return True
        return self.surrogate.kind != "plain" and not self.surrogate.to_sampler and self.correction.kind != "bypass"

    @property
    def scored_before_credit(self) -> bool:
        """Whether a KL in the reward or the sampled divergence to a teacher is part of the advantages."""
        distillation = _find_distillation(self)
        samples = distillation is not None and distillation.by_sampled_tokens
        return samples or self.regularizer.kl_in_reward

    @property
    def needs_correctness(self) -> bool:
        """Whether dynamic sampling keeps groups with correct and wrong completions."""
        return self.selection.dynamic_sampling

    @property
    def two_pass(self) -> bool:
        """Whether `top_entropy` needs all rows, or `drop_above` drops tokens before the average is computed."""
        shaping = _find_shaping(self)
        return self.selection.top_entropy < 1 or (shaping is not None and shaping.drop_above > 0)

    def check(self, group_size: int) -> None:
        """Reject groups of one completion if rewards are used and the estimator compares completions within a group."""
        estimator = self.advantage.estimator
        require(
            group_size > 1 or estimator not in estimators.COMPARING or not self.reads_rewards,
            f"sampling.group_size is 1, but algorithm.estimator={estimator} compares the answers to a problem "
            "with each other, so every advantage would be 0. Sample at least 2, or use the estimator none, "
            "returns or remax.",
        )

    def plan(self, problems: Sequence[Problem], group_size: int, context: StepContext) -> list[Request]:
        """Return the requests, with a greedy completion if it is the baseline, and with their demonstrations."""
        requests = [
            replace(request, greedy=self.advantage.estimator == "remax")
            for request in super().plan(problems, group_size, context)
        ]
        return requests if self.demonstrations is None else self.demonstrations.plan(requests, context)

    def filter_groups(self, groups: Groups) -> list[Group]:
        """Drop wrong demonstrations; with dynamic sampling, keep only groups with correct and wrong completions."""
        groups = groups if self.demonstrations is None else self.demonstrations.drop_wrong_traces(groups)
        return [group for group in groups if not self.selection.dynamic_sampling or crediting.is_mixed(group)]

    def enough(self, groups: Groups, wanted: int, rounds: int) -> bool:
        """Stop after one round; with dynamic sampling, once there are enough groups or after `max_rounds`."""
        if not self.selection.dynamic_sampling:
            return super().enough(groups, wanted, rounds)
        return len(groups) >= wanted or rounds >= self.selection.max_rounds

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Compute the advantages of all groups; imitated rows are excluded from statistics."""
        if self.imitates:
            settings = self.advantage
            return [split_group(group, settings.normalize_std, settings.std_epsilon) for group in groups]
        return crediting.compute_advantages(groups, self.advantage, self.regularizer, self.advantages)

    def advantages(self, rewards: Tensor) -> Tensor:
        """Compute the advantages of one group, for estimators that read only its rewards."""
        settings = self.advantage
        return estimators.compute_group_advantages(
            settings.estimator, rewards, settings.normalize_std, settings.std_epsilon
        )

    def rows(self, groups: Groups) -> list[Rollout]:
        """Return the completions to train: no greedy baseline and, with `mask_truncated`, no truncated ones."""
        mask_truncated = self.selection.mask_truncated
        return [
            rollout
            for rollout in super().rows(groups)
            if rollout.source != "greedy" and not (mask_truncated and rollout.stop_reason == "length")
        ]

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Compute the weights of the average, times the factor of `scale`; imitated rows have their own weights."""
        if self.imitates:
            return imitation.weigh_rows(batch, lambda rows: self._weigh_sampled(rows, length), self.weigh_imitated)
        return self._weigh_sampled(batch, length)

    def _weigh_sampled(self, batch: Batch, length: int) -> Tensor:
        return super().weights(batch, length) * compute_factor(self.scale, self.average, len(batch))

    def weigh_imitated(self, mask: Tensor) -> Tensor:
        """Compute the weight c_t of every imitated token of the step, [B, T], from a mask of these tokens, [B, T].

        By default, the weights of a mean over all of them.
        """
        return compute_token_weights(mask, "token", 0)

    def compute_metrics(self, batch: Batch) -> dict[str, float]:
        """Compute the metrics of the correction, if there is one, and the share of imitated rows."""
        stats = corrections.measure_correction(batch, self.correction) if self.needs_old_logps else {}
        return stats | (
            {"guidance/imitated": float(imitation.find_imitated(batch).mean(dtype=batch.mask.dtype))}
            if self.imitates
            else {}
        )

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """Apply the correction for the sampler, then `top_entropy` to advantages and `drop_above` to the mask."""
        batch = corrections.apply_correction(batch, self.correction, in_ratio=self.surrogate.kind == "vespo")
        if self.selection.top_entropy < 1 and entropy is not None:
            batch = exploration.keep_top_entropy(batch, entropy, self.selection.top_entropy)
        shaping = _find_shaping(self)
        return batch if shaping is None else shaping.drop_likely_tokens(batch, logps, self.average)

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return rows with an advantage or an imitated token; all rows if the loss has a KL or entropy term."""
        if self.surrogate.pulls_every_row or self.regularizer.acts_on_every_row:
            return batch.mask.any(1)
        live = super().has_gradient(batch)
        return live | imitation.find_imitated(batch) if self.imitates else live

    def terms(self, batch: Batch, logps: Tensor) -> surrogates.Terms:
        """Compute the unweighted policy loss of each token, [B, T], and sums for the metrics."""
        batch = corrections.drop_off_policy(batch, logps, self.correction.offpolicy_limit)
        if self.imitates:
            return imitation.compute_terms(batch, logps, partial(surrogates.compute_terms, settings=self.surrogate))
        return surrogates.compute_terms(batch, logps, self.surrogate)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the surrogate, plus the KL and minus the entropy bonus if set, all with the same token weights."""
        batch = imitation.mark_rows(batch) if self.imitates else batch
        terms, stats = self.terms(batch, logps)
        loss, settings = (batch.weights * terms).sum(), self.regularizer
        if settings.kl:
            penalty = regularizer.compute_penalty(batch, logps, settings, self.surrogate.row_ratios)
            stats["kl/ref"] = penalty.detach().sum()
            loss = loss + settings.kl * (batch.weights * penalty).sum() if settings.kl_in_loss else loss
        if settings.bonus:
            # Only sampled tokens count: uncertainty about a demonstration is not exploration.
            mask = surrogates.mask_off_policy(batch).mask
            loss = loss - settings.bonus * (batch.weights * losses.mask_values(entropy, mask)).sum()
        return loss, stats

    def adapt(self, stats: Mapping[str, float]) -> Self:
        """Adapt the weights of the KL and of the entropy bonus for the next step, if they have targets."""
        adapted = self.regularizer.adapt(stats)
        return self if adapted is self.regularizer else replace(self, regularizer=adapted)


def _find_distillation(algorithm: PolicyGradient) -> Distillation | None:
    """Return the settings of the divergence to a teacher; None without a field `distillation`."""
    distillation = getattr(algorithm, "distillation", None)
    return distillation if isinstance(distillation, Distillation) else None


def _find_shaping(algorithm: PolicyGradient) -> TokenShaping | None:
    """Return the settings of the weights of given and sampled tokens; None without a field `shaping`."""
    shaping = getattr(algorithm, "shaping", None)
    return shaping if isinstance(shaping, TokenShaping) else None
