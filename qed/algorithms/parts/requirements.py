"""Checks across the settings of several parts; each part checks its own settings."""

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
    """Reject incompatible parts of a policy gradient."""
    require(
        not (advantage.estimator == "gdpo" and regularizer.kl_place == "reward"),
        "The estimator gdpo normalises the parts of the reward, and a KL is not one: use algorithm.kl_place=loss.",
    )
    require(
        not surrogate.to_sampler or correction.kind in ("none", "bypass"),
        "algorithm.correction would count the sampler's log-probs twice, because the ratio of "
        f"{surrogate.kind} already uses them.",
    )


def require_critic(advantage: AdvantageEstimator, critic: Critic | None) -> None:
    """Reject the estimator gae without a critic, and any other estimator with a critic, because it does not use one."""
    require(
        critic is not None or advantage.estimator != "gae",
        "algorithm.estimator=gae needs a critic, which only qed ppo trains.",
    )
    require(
        critic is None or advantage.estimator == "gae",
        f"algorithm.estimator={advantage.estimator} does not use a critic: keep the estimator gae, or use another "
        "algorithm, such as qed grpo.",
    )


def require_call_of_advantages(advantage: AdvantageEstimator, name: str, imitates: bool) -> None:
    """Reject settings with which an algorithm's own method `advantages` would never be called."""
    batch = advantage.std_over == "batch"
    reason = "algorithm.std_over=batch" if batch else f"algorithm.estimator={advantage.estimator}"
    require(
        advantage.estimator in CALLING_ADVANTAGES and not batch and not imitates,
        f"{name} has its own method advantages, which {'imitation' if imitates else reason} does not call: it reads "
        "more than the rewards of a group. Override credit instead, or use the estimator group.",
    )


def require_split_statistics(advantage: AdvantageEstimator, regularizer: Regularizer) -> None:
    """Reject settings that are incompatible with statistics over only the sampled completions."""
    require(
        advantage.estimator == "group" and advantage.std_over == "group" and not advantage.whiten,
        "Statistics over only a group's sampled answers need algorithm.estimator=group and algorithm.std_over=group, "
        "without algorithm.whiten.",
    )
    require(
        regularizer.kl_place == "loss",
        "Statistics over only a group's sampled answers exclude a KL in the reward: use algorithm.kl_place=loss.",
    )
