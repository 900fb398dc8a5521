"""Advantage estimators: from rewards to advantages, float64 throughout.

Most read one group, [G]; those that are told `everything` also read the rewards of the whole step, [B]. A group of
equal rewards gets exactly 0 from all of them, and so does a group of one: there is nothing to compare it with. They use
nothing but the methods of the tensors that they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal["group", "none", "leave_one_out", "opo", "gpg", "passk", "max_rl", "remax", "returns", "gdpo"]
# These compare the answers of a group, so that one answer alone teaches nothing.
COMPARING = frozenset({"group", "leave_one_out", "opo", "gpg", "passk", "max_rl", "gdpo"})
# These give every token an advantage of its own.
TOKEN_LEVEL = frozenset({"remax", "returns"})
WHITEN_EPSILON = 1e-8  # added to the variance
ROUNDING = 1e-6  # of the mean size of rewards: a smaller mean of them is none


def are_all_equal(rewards: Tensor) -> bool:
    """Whether rewards are the same number; compared directly, because rounding can leave a tiny deviation."""
    return len(rewards) < 2 or bool((rewards == rewards[0]).all())


def compute_group_advantages(name: Estimator, rewards: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    """The estimators that read nothing but the rewards of one group."""
    if name == "none":
        return rewards
    if name == "leave_one_out":
        return subtract_others(rewards)
    if name == "max_rl":
        return compute_max_rl(rewards)
    return (compute_passk if name == "passk" else normalize_group)(rewards, normalize_std, epsilon)


def normalize_group(rewards: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    """GRPO (arXiv 2402.03300): (r - mean) / (std + epsilon), std with n - 1; without the division Dr. GRPO's."""
    if are_all_equal(rewards):
        return rewards * 0
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + epsilon) if normalize_std else centred


def scale_by_batch(rewards: Tensor, everything: Tensor, epsilon: float) -> Tensor:
    """The mean of the group, the deviation of the whole step: (r - mean_g) / (std + epsilon), std with n - 1."""
    centred = normalize_group(rewards, normalize_std=False, epsilon=epsilon)
    return centred if are_all_equal(everything) else centred / (everything.std() + epsilon)


def subtract_others(rewards: Tensor) -> Tensor:
    """RLOO (arXiv 2402.14740): r less the mean of the others, which is (r - mean) G / (G - 1)."""
    return normalize_group(rewards, normalize_std=False, epsilon=0) * (len(rewards) / max(1, len(rewards) - 1))


def compute_opo(rewards: Tensor, lengths: Tensor) -> Tensor:
    """OPO: r less the mean weighted by the answers' lengths, [G] tokens: the baseline of least variance."""
    return rewards * 0 if are_all_equal(rewards) else rewards - (rewards * lengths).sum() / lengths.sum().clamp(min=1)


def compute_gpg(rewards: Tensor, everything: Tensor) -> Tensor:
    """GPG: (r - mean) B / (the step's rewards that are not 0), as verl computes it."""
    factor = len(everything) / max(1, int((everything != 0).sum()))
    return normalize_group(rewards, normalize_std=False, epsilon=0) * factor


def compute_passk(rewards: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    """Pass@k training (arXiv 2503.19595): the best row alone gets what it is better than the second; a tie nothing."""
    found = rewards * 0
    if are_all_equal(rewards):
        return found
    best, second = rewards.topk(2).values
    found[rewards.argmax()] = (best - second) / (rewards.std() + epsilon if normalize_std else 1)
    return found


def compute_max_rl(rewards: Tensor) -> Tensor:
    """MaxRL (arXiv 2602.02710): (r - mean) / mean; 0 where the mean is not above 0.

    Rewards that cancel each other have a mean of 0 but for rounding, which would make advantages of 10^16.
    """
    if are_all_equal(rewards) or rewards.mean() <= ROUNDING * rewards.abs().mean():
        return rewards * 0
    return (rewards - rewards.mean()) / rewards.mean()


def sum_gdpo(parts: Sequence[tuple[float, Tensor]], epsilon: float) -> Tensor:
    """GDPO (arXiv 2601.05242), of one group: each part's rewards normalised by themselves, then added by weight.

    Args:
        parts: the weight and the rewards, [G], of each; NaN where a part does not apply to an answer, which adds 0.
        epsilon: added to the standard deviations.
    """
    total = parts[0][1].new_zeros(len(parts[0][1]))
    for weight, rewards in parts:
        there = ~rewards.isnan()
        total[there] += weight * normalize_group(rewards[there], normalize_std=True, epsilon=epsilon)
    return total


def scale_gdpo(sums: Tensor, everything: Tensor, epsilon: float) -> Tensor:
    """GDPO's second step: the sums divided by their deviation over the step; their mean is 0, as each group's is."""
    return sums * 0 if are_all_equal(everything) else sums / (everything.std() + epsilon)


def compute_returns(rewards: Tensor, discount: float) -> Tensor:
    """The discounted sum of the rewards from each token of one answer on, [T] both."""
    found, running = rewards.clone(), 0.0
    for place in reversed(range(len(rewards))):
        running = float(rewards[place]) + discount * running
        found[place] = running
    return found


def whiten(values: Tensor) -> Tensor:
    """REINFORCE++ (arXiv 2501.03262): (x - mean) / sqrt(var + 1e-8) over all trained tokens of the step, [N]."""
    if are_all_equal(values):
        return values * 0
    return (values - values.mean()) * (values.var() + WHITEN_EPSILON).rsqrt()
