"""Checks across the settings of several parts; each part checks its own settings itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qed.algorithms.base import require
from qed.algorithms.parts.estimators import CALLING_ADVANTAGES

if TYPE_CHECKING:
    from qed.algorithms.parts.advantage import AdvantageEstimator
    from qed.algorithms.parts.corrections import Correction
    from qed.algorithms.parts.critic import Critic
    from qed.algorithms.parts.regularizer import Regularizer
    from qed.algorithms.parts.surrogates import Surrogate


def require_compatible(
    advantage: AdvantageEstimator, surrogate: Surrogate, correction: Correction, regularizer: Regularizer
) -> None:
    """Refuse parts of a policy gradient that exclude each other."""
    require(
        not (advantage.estimator == "gdpo" and regularizer.kl_place == "reward"),
        "The estimator gdpo normalises the parts of the reward, and a KL is none: use algorithm.kl_place=loss.",
    )
    require(
        not surrogate.to_sampler or correction.kind in ("none", "bypass"),
        "algorithm.correction would count the sampler's log-probs twice: the ratio of "
        f"{surrogate.kind} is to them already.",
    )


def require_critic(advantage: AdvantageEstimator, critic: Critic | None) -> None:
    """Refuse the estimator gae without a critic, and any other one with a critic, whose values it does not read."""
    require(
        critic is not None or advantage.estimator != "gae",
        "algorithm.estimator=gae reads the values of a critic, which only qed ppo trains.",
    )
    require(
        critic is None or advantage.estimator == "gae",
        f"algorithm.estimator={advantage.estimator} reads no values of a critic: leave it at gae, or take another "
        "algorithm, such as qed grpo.",
    )


def require_call_of_advantages(advantage: AdvantageEstimator, name: str, imitates: bool) -> None:
    """Refuse settings with which an algorithm's own method `advantages` would never be called."""
    batch = advantage.std_over == "batch"
    reason = "algorithm.std_over=batch" if batch else f"algorithm.estimator={advantage.estimator}"
    require(
        advantage.estimator in CALLING_ADVANTAGES and not batch and not imitates,
        f"{name} has its own method advantages, which {'imitation' if imitates else reason} does not call: it reads "
        "more than the rewards of a group. Override credit in place of it, or take the estimator group.",
    )


def require_split_statistics(advantage: AdvantageEstimator, regularizer: Regularizer) -> None:
    """Refuse settings that advantages by the statistics of sampled completions do not support."""
    require(
        advantage.estimator == "group" and advantage.std_over == "group" and not advantage.whiten,
        "The statistics of a group's own answers go with algorithm.estimator=group, algorithm.std_over=group and no "
        "algorithm.whiten.",
    )
    require(
        regularizer.kl_place == "loss",
        "The statistics of a group's own answers read no KL in the reward: use algorithm.kl_place=loss.",
    )
