"""Advantage estimators: functions from rewards to advantages, in float64.

Most read one group, [G]; those with an argument `everything` also read the rewards of the whole step, [B]. A group of
equal rewards gets exactly 0 from those that compare completions, and so does a group of one. Only methods of the
tensors are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from qed.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    # Computes the advantages of one group, [G], from its rewards alone.
    OfGroup = Callable[[Tensor], Tensor]

Estimator = Literal[
    "group", "none", "leave_one_out", "opo", "gpg", "passk", "max_rl", "remax", "returns", "gdpo", "gae"
]
# Compare the completions of a group, so a group of one always gets 0.
COMPARING = frozenset({"group", "leave_one_out", "opo", "gpg", "passk", "max_rl", "gdpo"})
# Read only the rewards of a group, through an algorithm's method `advantages`.
CALLING_ADVANTAGES = frozenset({"group", "none", "leave_one_out", "passk", "max_rl"})
# Compute an advantage for every token.
TOKEN_LEVEL = frozenset({"remax", "returns"})
WHITEN_EPSILON = 1e-8  # added to the variance
ROUNDING = 1e-6  # relative to the mean of |r|: a mean reward below this counts as 0


def call_for_group(of_group: OfGroup, rewards: Tensor) -> Tensor:
    """Compute the advantages of one group, [G], by a function that may be user-defined; not called without rewards.

    Raises:
        UsageError: the function returns something else.
    """
    if not len(rewards):
        return rewards
    found = of_group(rewards)
    is_array = hasattr(found, "__array__")
    if is_array and tuple(found.shape) == tuple(rewards.shape):
        return found if isinstance(found, type(rewards)) else rewards.new_tensor(found)
    told = f"a tensor of shape {list(found.shape)}" if is_array else type(found).__name__
    raise UsageError(
        f"{getattr(of_group, '__qualname__', of_group)} returned {told} for {len(rewards)} rewards of a group. It "
        "must return a tensor with one advantage per reward."
    )


def are_all_equal(rewards: Tensor) -> bool:
    """Whether all rewards are equal; compared directly, because rounding can cause a tiny standard deviation."""
    return len(rewards) < 2 or bool((rewards == rewards[0]).all())


def compute_group_advantages(name: Estimator, rewards: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    """Compute the advantages of one group by an estimator that reads only its rewards."""
    if name == "none":
        return rewards
    if name == "leave_one_out":
        return compute_leave_one_out(rewards)
    if name == "max_rl":
        return compute_max_rl(rewards)
    return (compute_passk if name == "passk" else normalize_group)(rewards, normalize_std, epsilon)


def normalize_group(rewards: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    """Compute GRPO (arXiv 2402.03300): (r - mean) / (std + epsilon), std with n - 1; Dr. GRPO without the division."""
    if are_all_equal(rewards):
        return rewards * 0
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + epsilon) if normalize_std else centred


def scale_by_batch(rewards: Tensor, everything: Tensor, epsilon: float) -> Tensor:
    """Compute (r - mean) / (std + epsilon) with the group's mean and the step's std (n - 1)."""
    centred = normalize_group(rewards, normalize_std=False, epsilon=epsilon)
    return centred if are_all_equal(everything) else centred / (everything.std() + epsilon)


def compute_leave_one_out(rewards: Tensor) -> Tensor:
    """Compute RLOO (arXiv 2402.14740): r minus the mean of the others, which is (r - mean) G / (G - 1)."""
    return normalize_group(rewards, normalize_std=False, epsilon=0) * (len(rewards) / max(1, len(rewards) - 1))


def compute_opo(rewards: Tensor, lengths: Tensor) -> Tensor:
    """Compute OPO: r minus the mean weighted by `lengths`, [G] tokens, the baseline of least variance."""
    return rewards * 0 if are_all_equal(rewards) else rewards - (rewards * lengths).sum() / lengths.sum().clamp(min=1)


def compute_gpg(rewards: Tensor, everything: Tensor) -> Tensor:
    """Compute GPG: (r - mean) B / (number of nonzero rewards in the step), as verl does."""
    factor = len(everything) / max(1, int((everything != 0).sum()))
    return normalize_group(rewards, normalize_std=False, epsilon=0) * factor


def compute_passk(rewards: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    """Compute pass@k advantages (arXiv 2503.19595): the best row gets its margin over the second."""
    advantages = rewards * 0
    if are_all_equal(rewards):
        return advantages
    best, second = rewards.topk(2).values
    advantages[rewards.argmax()] = (best - second) / (rewards.std() + epsilon if normalize_std else 1)
    return advantages


def compute_max_rl(rewards: Tensor) -> Tensor:
    """Compute MaxRL (arXiv 2602.02710): (r - mean) / mean; 0 where the mean is not above 0.

    If rewards cancel, their mean is only rounding error, which would give advantages of 10^16; it counts as 0.
    """
    if are_all_equal(rewards) or rewards.mean() <= ROUNDING * rewards.abs().mean():
        return rewards * 0
    return (rewards - rewards.mean()) / rewards.mean()


def sum_gdpo(parts: Sequence[tuple[float, Tensor]], epsilon: float) -> Tensor:
    """Compute GDPO's first step (arXiv 2601.05242) for a group: normalise each part's rewards, then sum them by weight.

    Args:
        parts: weight and rewards, [G], of each part; NaN where a part does not apply to a completion, which adds 0.
        epsilon: added to the standard deviations.
    """
    total = parts[0][1].new_zeros(len(parts[0][1]))
    for weight, rewards in parts:
        applies = ~rewards.isnan()
        total[applies] += weight * normalize_group(rewards[applies], normalize_std=True, epsilon=epsilon)
    return total


def scale_gdpo(sums: Tensor, everything: Tensor, epsilon: float) -> Tensor:
    """Compute GDPO's second step: divide the sums by their std over the step; their mean is already 0."""
    return sums * 0 if are_all_equal(everything) else sums / (everything.std() + epsilon)


def compute_returns(rewards: Tensor, discount: float) -> Tensor:
    """Compute the discounted sum of rewards from each token of a completion onwards, [T] from [T]."""
    returns, running = [], 0.0
    for reward in reversed(rewards.tolist()):
        running = reward + discount * running
        returns.append(running)
    return rewards.new_tensor(returns[::-1])


def whiten(values: Tensor) -> Tensor:
    """Whiten as in REINFORCE++ (arXiv 2501.03262): (x - mean) / sqrt(var + 1e-8) over all trained tokens, [N]."""
    if are_all_equal(values):
        return values * 0
    return (values - values.mean()) * (values.var() + WHITEN_EPSILON).rsqrt()
