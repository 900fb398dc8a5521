"""What the settings of the online family must be, each by itself and beside the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qed.algorithms.base import require

if TYPE_CHECKING:
    from qed.algorithms.parts.policy_gradient import PolicyGradient


def advantages(method: PolicyGradient) -> None:
    """Of rewards, advantages and the groups that are kept."""
    require(method.std_epsilon >= 0, "algorithm.std_epsilon must not be negative.")
    require(0 <= method.discount <= 1, "algorithm.discount must lie in [0, 1].")
    require(method.max_rounds >= 1, "algorithm.max_rounds must be at least 1.")
    require(
        method.discount == 1 or method.estimator == "returns",
        "algorithm.discount is read by the estimator returns alone; set algorithm.estimator=returns.",
    )
    require(
        method.std_over == "group" or (method.estimator == "group" and method.normalize_std),
        "algorithm.std_over=batch goes with the estimator group and algorithm.normalize_std.",
    )


def split(method: PolicyGradient) -> None:
    """Of advantages that are measured by a group's own answers, which read nothing else of the settings."""
    require(
        method.estimator == "group" and method.std_over == "group" and not method.whiten,
        "The statistics of a group's own answers go with algorithm.estimator=group, std_over=group and no whiten.",
    )
    require(
        method.kl_place == "loss",
        "The statistics of a group's own answers read no KL in the reward: use algorithm.kl_place=loss.",
    )


def regularisers(method: PolicyGradient) -> None:
    """Of the KL and of the entropy."""
    require(method.kl >= 0, "algorithm.kl must not be negative.")
    require(method.kl_target >= 0, "algorithm.kl_target must not be negative.")
    require(method.kl_horizon >= 1, "algorithm.kl_horizon must be at least 1.")
    require(
        method.kl_target == 0 or method.kl > 0,
        "algorithm.kl_target steers the weight algorithm.kl, which must be above 0 to begin with.",
    )
    moving(method.reference_every, method.reference_mix)
    require(
        method.reference_every == 0 or method.kl > 0,
        "algorithm.reference_every moves the reference model of the KL, and there is none without algorithm.kl.",
    )
    require(
        not (method.kl_importance and method.kl_place == "reward"),
        "algorithm.kl_importance is of the KL in the loss; in the reward there is no ratio to multiply by.",
    )
    require(
        not (method.estimator == "gdpo" and method.kl_place == "reward"),
        "The estimator gdpo normalises the parts of the reward, and a KL is none: use algorithm.kl_place=loss.",
    )
    require(method.entropy_target >= 0, "algorithm.entropy_target must not be negative.")
    require(0 < method.top_entropy <= 1, "algorithm.top_entropy must lie in (0, 1].")


def moving(every: int, mix: float) -> None:
    """Of a reference model that follows the policy."""
    require(every >= 0, "algorithm.reference_every must not be negative.")
    require(0 < mix <= 1, "algorithm.reference_mix must lie in (0, 1].")


def surrogate(method: PolicyGradient) -> None:
    """Of the surrogate and its corrections."""
    require(0 <= method.clip_low <= 1, "algorithm.clip_low must lie in [0, 1].")
    require(method.clip_high >= 0, "algorithm.clip_high must not be negative.")
    require(method.clip_dual == 0 or method.clip_dual > 1, "algorithm.clip_dual must be 0, or above 1.")
    require(method.ratio_clamp >= 0, "algorithm.ratio_clamp must not be negative.")
    require(min(method.sapo_temperatures) > 0, "algorithm.sapo_temperatures must both be above 0.")
    require(min(method.vespo_shape) > 0, "algorithm.vespo_shape must hold numbers above 0.")
    require(method.dppo_square >= 0, "algorithm.dppo_square must not be negative.")
    require(
        method.surrogate != "dppo" or method.correction in ("none", "bypass"),
        "algorithm.correction would count the sampler's log-probs twice: the ratio of dppo is to them already.",
    )
    require(
        0 <= method.correction_low <= method.correction_high and method.correction_high > 0,
        "algorithm.correction_low must lie in [0, algorithm.correction_high].",
    )
    # k2 and k3 have no lower bound.
    lowest = method.rejection_low if method.rejection.endswith("k1") else 0.0
    require(
        0 <= lowest <= method.rejection_high and method.rejection_high > 0,
        "algorithm.rejection_low must lie in [0, algorithm.rejection_high].",
    )
    require(method.offpolicy_limit >= 0, "algorithm.offpolicy_limit must not be negative.")
