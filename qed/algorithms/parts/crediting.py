"""Credit: from the graded groups of a step to the advantage of every answer, or of every token of it.

What could not be graded, or has no reward, stands outside of every statistic and gets 0; so does a greedy answer, which
is a baseline. As in TRL, such a row stays a row of the step: its tokens count in the average that the loss is divided
by, and in a KL or entropy term, but its policy loss is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import compress
from typing import TYPE_CHECKING

from qed.algorithms.parts import estimators
from qed.algorithms.parts.divergences import estimate_kl
from qed.types import UNGRADED, Advantage, Group, Groups, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.algorithms.parts.advantage import AdvantageEstimator
    from qed.algorithms.parts.regularizer import Regularizer

    # The advantages of one group, [G], where its rewards alone are read.
    OfGroup = Callable[[Tensor], Tensor]


def is_counted(rollout: Rollout) -> bool:
    """Whether an answer belongs to its group's statistics."""
    return rollout.source != "greedy" and _is_rewarded(rollout)


def _is_rewarded(rollout: Rollout) -> bool:
    grade = rollout.grade
    return grade is not None and grade.has_reward and grade.tier not in UNGRADED


def is_mixed(group: Group) -> bool:
    """Whether some of a group's answers are right and some wrong, whatever else their rewards are made of."""
    return len({rollout.grade.correct for rollout in group if rollout.grade is not None and is_counted(rollout)}) > 1


def compute_advantages(
    groups: Groups, settings: AdvantageEstimator, regularizer: Regularizer, of_group: OfGroup
) -> list[list[Advantage]]:
    """The advantage of every rollout of every group of a step.

    Args:
        groups: of the step.
        settings: the estimator, and how its advantages are normalised.
        regularizer: of the KL that may be taken off the rewards.
        of_group: the advantages of one group, [G] float64, where the estimator reads its rewards alone.
    """
    from torch import cat, split  # noqa: PLC0415 -- the command line reads this file for its help, without torch

    standing = [[rollout for rollout in group if is_counted(rollout)] for group in groups]
    rows = [rollout for group in standing for rollout in group]
    found: list[Advantage] = []
    if rows and (settings.estimator in estimators.TOKEN_LEVEL or settings.whiten):
        values = _compute_token_advantages(groups, standing, settings, regularizer, of_group)
        if settings.whiten:
            values = list(split(estimators.whiten(cat(values)), [len(value) for value in values]))
        found = [_align_advantage(value.tolist(), rollout) for value, rollout in zip(values, rows, strict=True)]
    elif rows:
        found = cat(_compute_answer_advantages(standing, settings, regularizer, of_group)).tolist()
    advantages = {id(rollout): advantage for rollout, advantage in zip(rows, found, strict=True)}
    return [[advantages.get(id(rollout), 0.0) for rollout in group] for group in groups]


def _align_advantage(values: list[float], rollout: Rollout) -> Advantage:
    """The advantages of the trained tokens aligned on the output, 0 elsewhere; one number where all have the same."""
    if len(set(values)) < 2:
        return values[0] if values else 0.0
    own = iter(values)
    return tuple(next(own) if trained else 0.0 for trained in rollout.trained)


def _compute_token_advantages(
    groups: Groups, standing: Groups, settings: AdvantageEstimator, regularizer: Regularizer, of_group: OfGroup
) -> list[Tensor]:
    """The advantages of the trained tokens of every answer that stands, one tensor an answer."""
    if settings.estimator == "returns":
        rows = [rollout for group in standing for rollout in group]
        return [_compute_returns(rollout, regularizer, settings.discount) for rollout in rows]
    if settings.estimator == "remax":
        return [
            value
            for group, own in zip(groups, standing, strict=True)
            for value in _compute_remax(group, own, regularizer)
        ]
    pairs = zip(standing, _compute_answer_advantages(standing, settings, regularizer, of_group), strict=True)
    return [
        advantage.expand(rollout.trained_count)
        for group, advantages in pairs
        for rollout, advantage in zip(group, advantages, strict=True)
    ]


def _compute_remax(group: Group, standing: Group, regularizer: Regularizer) -> list[Tensor]:
    """ReMax: the rewards to come less the reward of the group's greedy answer; 0 where that has no reward."""
    greedy = [one.reward for one in group if one.source == "greedy" and _is_rewarded(one)]
    rewards = [_compute_returns(rollout, regularizer, 1.0) for rollout in standing]
    return [reward - greedy[0] if greedy else reward * 0 for reward in rewards]


def _compute_returns(rollout: Rollout, regularizer: Regularizer, discount: float) -> Tensor:
    """The discounted rewards to come at each trained token; what others wrote in between takes no step."""
    return estimators.compute_returns(_read_rewards(rollout, regularizer), discount)[: rollout.trained_count]


def _compute_answer_advantages(
    standing: Groups, settings: AdvantageEstimator, regularizer: Regularizer, of_group: OfGroup
) -> list[Tensor]:
    """The advantages of the answers that stand, one tensor a group."""
    from torch import cat, float64, tensor  # noqa: PLC0415

    if settings.estimator == "gdpo":
        sums = [_sum_gdpo(group, settings.std_epsilon) for group in standing]
        return [estimators.scale_gdpo(own, cat(sums), settings.std_epsilon) for own in sums]
    rewards = [
        tensor([float(_read_rewards(rollout, regularizer).sum()) for rollout in group], dtype=float64)
        for group in standing
    ]
    if settings.estimator == "opo":
        lengths = [tensor([rollout.trained_count for rollout in group], dtype=float64) for group in standing]
        return [estimators.compute_opo(own, tokens) for own, tokens in zip(rewards, lengths, strict=True)]
    if settings.estimator == "gpg":
        return [estimators.compute_gpg(own, cat(rewards)) for own in rewards]
    if settings.estimator == "group" and settings.normalize_std and settings.std_over == "batch":
        return [estimators.scale_by_batch(own, cat(rewards), settings.std_epsilon) for own in rewards]
    return [of_group(own) for own in rewards]


def _sum_gdpo(group: Group, epsilon: float) -> Tensor:
    """The parts of a group's rewards; a reward that is no sum of several is its own only part."""
    from torch import float64, tensor  # noqa: PLC0415

    grades = [rollout.grade for rollout in group if rollout.grade is not None]
    weights = {name: weight for grade in grades for name, weight in grade.weights.items() if weight}
    columns = [(weight, [grade.parts.get(name, math.nan) for grade in grades]) for name, weight in weights.items()]
    columns = columns or [(1.0, [grade.reward for grade in grades])]
    return estimators.sum_gdpo([(weight, tensor(column, dtype=float64)) for weight, column in columns], epsilon)


def _read_rewards(rollout: Rollout, regularizer: Regularizer) -> Tensor:
    """The reward of every trained token, float64: the outcome on the last one, a KL in the reward taken off each.

    An answer without a trained token has one entry, its outcome.
    """
    from torch import float64, tensor, zeros  # noqa: PLC0415

    count, trained = rollout.trained_count, rollout.trained
    rewards = zeros(max(1, count), dtype=float64)
    rewards[-1] = rollout.reward
    if not regularizer.kl_in_reward:
        return rewards
    old, reference = (
        tensor(list(compress(values or (), trained)), dtype=float64)
        for values in (rollout.old_logps, rollout.ref_logps)
    )
    penalty = estimate_kl(regularizer.kl_estimator, old - reference)
    # Of tokens that the policy did not sample it is no estimate.
    given = tensor(list(compress(rollout.off_policy, trained)), dtype=float64)
    penalty = penalty.masked_fill(given != 0, 0)
    rewards[:count] -= regularizer.kl * penalty
    return rewards
