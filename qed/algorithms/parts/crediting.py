"""Credit assignment: compute the advantage of every completion, or of each of its tokens, from the graded groups.

A completion that could not be graded or has no reward is excluded from statistics and gets 0; so does a greedy
completion, which is a baseline. As in TRL, such a row stays in the step: its tokens count in the average and in a
KL or entropy term, but its policy loss is 0.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from qed.algorithms.parts import estimators
from qed.algorithms.parts.divergences import estimate_kl
from qed.errors import UsageError
from qed.types import Advantage, Group, Groups, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.algorithms.parts.advantage import AdvantageEstimator
    from qed.algorithms.parts.estimators import OfGroup
    from qed.algorithms.parts.regularizer import Regularizer


def is_counted(rollout: Rollout) -> bool:
    """Whether a completion counts in its group's statistics."""
    return rollout.source != "greedy" and _is_rewarded(rollout)


def _is_rewarded(rollout: Rollout) -> bool:
    """Whether a completion was graded and has a reward."""
    return rollout.grade is not None and rollout.has_reward


def is_mixed(group: Group) -> bool:
    """Whether a group has correct and wrong completions, regardless of their other rewards."""
    return len({rollout.grade.correct for rollout in group if rollout.grade is not None and is_counted(rollout)}) > 1


def compute_advantages(
    groups: Groups, settings: AdvantageEstimator, regularizer: Regularizer, of_group: OfGroup
) -> list[list[Advantage]]:
    """Compute the advantage of every rollout of every group of a step.

    Args:
        groups: the groups of the step.
        settings: the estimator, and the normalisation of its advantages.
        regularizer: settings of the KL, which may be subtracted from the rewards.
        of_group: computes the advantages of one group, [G] float64, for estimators that read only its rewards.
    """
    from torch import cat  # noqa: PLC0415

    counted = [[rollout for rollout in group if is_counted(rollout)] for group in groups]
    rows = [rollout for group in counted for rollout in group]
    row_advantages: list[Advantage] = []
    if rows and (settings.estimator in estimators.TOKEN_LEVEL or settings.whiten):
        values = _compute_token_advantages(groups, counted, settings, regularizer, of_group)
        return _assign_advantages(groups, rows, values, settings.whiten)
    if rows:
        row_advantages = cat(_compute_answer_advantages(counted, settings, regularizer, of_group)).tolist()
    advantages = {id(rollout): advantage for rollout, advantage in zip(rows, row_advantages, strict=True)}
    return [[advantages.get(id(rollout), 0.0) for rollout in group] for group in groups]


def compute_token_advantages(
    groups: Groups, of_rollout: Callable[[Rollout], Tensor], whiten: bool
) -> list[list[Advantage]]:
    """Compute the advantages of each counted completion's trained tokens, [T], separately; `whiten` normalises."""
    counted = [rollout for group in groups for rollout in group if is_counted(rollout)]
    return _assign_advantages(groups, counted, [of_rollout(rollout) for rollout in counted], whiten)


def _assign_advantages(groups: Groups, counted: Group, values: list[Tensor], whiten: bool) -> list[list[Advantage]]:
    """Return the advantage of every rollout of every group from the counted completions' token advantages."""
    from torch import cat, split  # noqa: PLC0415 -- the command line imports this file for `--help`, without torch

    if whiten and values:
        values = list(split(estimators.whiten(cat(values)), [len(value) for value in values]))
    advantages = {
        id(rollout): _align_advantage(value.tolist(), rollout) for value, rollout in zip(values, counted, strict=True)
    }
    return [[advantages.get(id(rollout), 0.0) for rollout in group] for group in groups]


def _align_advantage(values: list[float], rollout: Rollout) -> Advantage:
    """Align the advantages of trained tokens with the output, 0 elsewhere; return one number if all are equal."""
    if len(set(values)) < 2:
        return values[0] if values else 0.0
    return align_tokens(values, rollout)


def align_tokens(values: Sequence[float], rollout: Rollout) -> tuple[float, ...]:
    """Align the values of trained tokens with the output, 0 elsewhere."""
    remaining = iter(values)
    return tuple(next(remaining) if trained else 0.0 for trained in rollout.trained)


def _compute_token_advantages(
    groups: Groups, counted: Groups, settings: AdvantageEstimator, regularizer: Regularizer, of_group: OfGroup
) -> list[Tensor]:
    """Compute the advantages of the trained tokens of every counted completion, one tensor each."""
    if settings.estimator == "returns":
        rows = [rollout for group in counted for rollout in group]
        return [_compute_returns(rollout, regularizer, settings.discount) for rollout in rows]
    if settings.estimator == "remax":
        return [
            value
            for group, members in zip(groups, counted, strict=True)
            for value in _compute_remax(group, members, regularizer)
        ]
    pairs = zip(counted, _compute_answer_advantages(counted, settings, regularizer, of_group), strict=True)
    return [
        advantage.expand(rollout.trained_count)
        for group, advantages in pairs
        for rollout, advantage in zip(group, advantages, strict=True)
    ]


def _compute_remax(group: Group, counted: Group, regularizer: Regularizer) -> list[Tensor]:
    """Compute ReMax: the return minus the reward of the group's greedy completion; 0 if that has no reward."""
    greedy = [rollout.reward for rollout in group if rollout.source == "greedy" and _is_rewarded(rollout)]
    rewards = [_compute_returns(rollout, regularizer, 1.0) for rollout in counted]
    return [reward - greedy[0] if greedy else reward * 0 for reward in rewards]


def _compute_returns(rollout: Rollout, regularizer: Regularizer, discount: float) -> Tensor:
    """Compute the discounted return at each trained token; untrained tokens in between do not discount."""
    return estimators.compute_returns(read_rewards(rollout, regularizer), discount)[: rollout.trained_count]


def _compute_answer_advantages(
    counted: Groups, settings: AdvantageEstimator, regularizer: Regularizer, of_group: OfGroup
) -> list[Tensor]:
    """Compute the advantages of the counted completions, one tensor per group."""
    from torch import cat, float64, tensor  # noqa: PLC0415

    if settings.estimator == "gdpo":
        sums = [_sum_gdpo(group, settings.std_epsilon) for group in counted]
        return [estimators.scale_gdpo(values, cat(sums), settings.std_epsilon) for values in sums]
    rewards = [
        tensor([float(read_rewards(rollout, regularizer).sum()) for rollout in group], dtype=float64)
        for group in counted
    ]
    if settings.estimator == "opo":
        lengths = [tensor([rollout.trained_count for rollout in group], dtype=float64) for group in counted]
        return [estimators.compute_opo(values, tokens) for values, tokens in zip(rewards, lengths, strict=True)]
    if settings.estimator == "gpg":
        return [estimators.compute_gpg(values, cat(rewards)) for values in rewards]
    if settings.estimator == "group" and settings.normalize_std and settings.std_over == "batch":
        return [estimators.scale_by_batch(values, cat(rewards), settings.std_epsilon) for values in rewards]
    return [estimators.call_for_group(of_group, values) for values in rewards]


def read_credit(name: str, groups: Groups, credited: Iterable[Iterable[Advantage]]) -> list[list[Advantage]]:
    """Read the return value of an algorithm's `credit`: an advantage for every rollout of every group.

    Raises:
        UsageError: it is something else, or an answer's advantages do not match its tokens.
    """
    try:
        rows = [list(each) for each in credited]
    except TypeError:
        rows = []
    if [len(each) for each in rows] != [len(group) for group in groups]:
        raise UsageError(
            f"{name}.credit must return a list for each of the {len(groups)} groups, with an advantage for each of its "
            f"rollouts; it returned {reprlib.repr(credited)}."
        )
    return [
        [_read_advantage(name, rollout, advantage) for rollout, advantage in zip(group, advantages, strict=True)]
        for group, advantages in zip(groups, rows, strict=True)
    ]


def _read_advantage(name: str, rollout: Rollout, given: Any) -> Advantage:
    """Read the advantage of a rollout: a number, or one per token; NumPy and torch values are accepted."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    is_of_tokens = isinstance(plain, tuple | list)
    if is_of_tokens and len(plain) != len(rollout.output):
        raise UsageError(
            f"{name}.credit returned {len(plain)} advantages for an answer of {len(rollout.output)} tokens. Return "
            "one number, or a tuple with one number per token."
        )
    parts = plain if is_of_tokens else (plain,)
    if not all(hasattr(each, "__float__") for each in parts):
        raise UsageError(f"{name}.credit returned {reprlib.repr(given)}, which is not an advantage: a number.")
    numbers = tuple(map(float, parts))
    return numbers if is_of_tokens else numbers[0]


def _sum_gdpo(group: Group, epsilon: float) -> Tensor:
    """Compute GDPO's sum over the parts of a group's rewards; a reward without parts counts as one part."""
    from torch import float64, tensor  # noqa: PLC0415

    grades = [rollout.grade for rollout in group if rollout.grade is not None]
    weights = {name: weight for grade in grades for name, weight in grade.weights.items() if weight}
    columns = [(weight, [grade.parts.get(name, math.nan) for grade in grades]) for name, weight in weights.items()]
    columns = columns or [(1.0, [grade.reward for grade in grades])]
    return estimators.sum_gdpo([(weight, tensor(column, dtype=float64)) for weight, column in columns], epsilon)


def read_rewards(rollout: Rollout, regularizer: Regularizer) -> Tensor:
    """Return the reward of every trained token, float64: the outcome on the last token, minus any KL in the reward.

    A completion without a trained token has one entry, its outcome.
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
    # The KL estimate is invalid on tokens that the policy did not sample.
    not_sampled = tensor(list(compress(rollout.off_policy, trained)), dtype=float64)
    penalty = penalty.masked_fill(not_sampled != 0, 0)
    rewards[:count] -= regularizer.kl * penalty
    return rewards
