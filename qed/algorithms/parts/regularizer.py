"""Regularization of the policy: the KL to a fixed or moving reference model, and an entropy bonus."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from qed.algorithms.base import require, require_moves
from qed.algorithms.parts import divergences, exploration, losses
from qed.algorithms.parts.divergences import Divergence
from qed.algorithms.parts.surrogates import mask_off_policy

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Regularizer:
    """The KL to the reference model, and the entropy bonus."""

    kl: float = 0.0
    """Weight of the KL to the reference model; 0 loads none."""
    kl_estimator: Divergence = "k3"
    """Estimator of a token's KL; with a plus, the value comes from that estimator and the gradient from k2."""
    kl_place: Literal["loss", "reward"] = "loss"
    """Add the KL to the loss, or subtract it from the reward of every token before the advantages."""
    kl_importance: bool = False
    """Multiply the KL in the loss by the ratio of the policy to the one that sampled the answer."""
    kl_target: float = 0.0
    """Target KL per token; the weight adapts to reach it, starting from `kl`. 0 keeps the weight fixed."""
    kl_horizon: int = 10000
    """The number of answers over which the KL's weight adapts."""
    reference_every: int = 0
    """Number of steps after which the KL's reference model moves towards the policy, as in ProRL; 0 never moves it."""
    reference_mix: float = 1.0
    """How far the reference moves: 1 replaces it with the current policy, smaller values mix their weights."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    entropy_target: float = 0.0
    """Target entropy per token: below it, the bonus's weight grows by 0.005 a step; above it, the weight shrinks and
    the bonus is not applied. 0 keeps the weight fixed."""
    entropy_on: bool = True
    """Whether a bonus with a target applies in the next step; the run sets this from the entropy of each step."""

    @property
    def unread(self) -> dict[str, str]:
        """The settings of the KL that have no effect, each with the setting that disables it."""
        of_kl = () if self.kl else ("kl_estimator", "kl_place", "kl_importance")
        return {
            **dict.fromkeys(of_kl, "kl=0"),
            **({} if self.kl_target else {"kl_horizon": "kl_target=0"}),
            **({} if self.reference_every else {"reference_mix": "reference_every=0"}),
        }

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(0 <= self.kl < math.inf, "algorithm.kl must be a finite number, 0 or more.")
        require(0 <= self.kl_target < math.inf, "algorithm.kl_target must be a finite number, 0 or more.")
        require(self.kl_horizon >= 1, "algorithm.kl_horizon must be at least 1.")
        require(
            self.kl_target == 0 or self.kl > 0,
            "algorithm.kl_target adapts the weight algorithm.kl, which must start above 0.",
        )
        require_moves(self.reference_every, self.reference_mix)
        require(
            self.reference_every == 0 or self.kl > 0,
            "algorithm.reference_every moves the KL's reference model, but with algorithm.kl=0 there is none.",
        )
        require(
            not (self.kl_importance and self.kl_place == "reward"),
            "algorithm.kl_importance applies to a KL in the loss; a KL in the reward has no ratio to multiply by.",
        )
        require(math.isfinite(self.entropy), "algorithm.entropy must be a finite number.")
        require(0 <= self.entropy_target < math.inf, "algorithm.entropy_target must be a finite number, 0 or more.")

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL is a term of the loss."""
        return self.kl > 0 and self.kl_place == "loss"

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL is subtracted from the rewards."""
        return self.kl > 0 and self.kl_place == "reward"

    @property
    def bonus(self) -> float:
        """The weight of the entropy in this step's loss."""
        return self.entropy if self.entropy_on or not self.entropy_target else 0.0

    @property
    def acts_on_every_row(self) -> bool:
        """Whether rows without an advantage have a gradient, or a KL or entropy that a weight adapts to."""
        return bool(self.bonus or self.kl_in_loss or self.kl_target or self.entropy_target)

    def adapt(self, stats: Mapping[str, float]) -> Self:
        """Adapt the weights of the KL and of the entropy bonus for the next step, if they have targets."""
        changes: dict[str, Any] = {}
        if self.kl_target and "kl/ref" in stats:
            rows = stats.get("train/rows", 0)
            changes["kl"] = divergences.adapt_kl_weight(self.kl, stats["kl/ref"], self.kl_target, rows, self.kl_horizon)
        if self.entropy_target and "policy/entropy" in stats:
            measured = stats["policy/entropy"]
            changes["entropy"] = exploration.adapt_entropy_weight(self.entropy, measured, self.entropy_target)
            changes["entropy_on"] = measured <= self.entropy_target
        return replace(self, **changes) if changes else self


def compute_penalty(batch: Batch, logps: Tensor, settings: Regularizer, row_ratios: bool) -> Tensor:
    """Compute the KL of every token, [B, T]; for a KL in the reward this is only a metric, of the old policy.

    It is 0 on tokens that the policy did not sample, where the KL estimate is invalid.

    Args:
        batch: the micro-batch.
        logps: [B, T], log-probs of the policy, with gradient.
        settings: settings of the KL.
        row_ratios: whether the surrogate has one ratio per row, as in GSPO; `kl_importance` then uses it too.
    """
    policy = logps if settings.kl_place == "loss" else losses.fill_old_logps(batch.old_logps, logps)
    mask = mask_off_policy(batch).mask
    penalty = divergences.estimate_kl(settings.kl_estimator, losses.mask_values(policy - batch.ref_logps, mask))
    if settings.kl_importance:
        log_ratio = losses.compute_log_ratios(logps, batch.old_logps, mask)
        penalty = penalty * (losses.compute_sequence_log_ratios(log_ratio, mask) if row_ratios else log_ratio).exp()
    return penalty
