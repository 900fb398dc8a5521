"""Rules of verl, TRL and LUFFY that no setting of qed reproduces, as functions that the tests compare with.

Their averages depend on how an optimizer step is cut: they take the cuts, [[rows of a micro-batch], …].
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from qed.algorithms.base import Average, compute_token_weights
from qed.algorithms.parts.divergences import estimate_kl
from qed.algorithms.parts.estimators import whiten
from qed.algorithms.parts.scales import compute_factor

Cuts = Sequence[Sequence[int]]
# What verl calls the estimators of the KL.
VERL = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}


def average_as_verl_legacy(loss: Tensor, mask: Tensor, cuts: Cuts, average: Average, length: int = 1) -> Tensor:
    """verl's legacy actor: the average of each micro-batch by itself, times its share of the mini-batch's rows.

    With unequal micro-batches its token mean is not the token mean of the mini-batch. Rows without a response token are
    left out of a micro-batch's average; here every row has one.
    """
    total = loss.new_zeros(())
    for cut in cuts:
        rows = [row for row in cut if bool(mask[row].any())]
        own = (loss[rows] * compute_token_weights(mask[rows], average, length)).sum() * compute_factor(
            "verl", average, len(rows)
        )
        total = total + own * len(cut) / sum(len(part) for part in cuts)
    return total


def average_as_trl_bnpo(loss: Tensor, mask: Tensor, cuts: Cuts) -> Tensor:
    """TRL's `bnpo`: the token mean of each micro-batch by itself, divided by how many micro-batches there are."""
    return sum_as_luffy(loss, mask, cuts) / len(cuts)


def sum_as_luffy(loss: Tensor, mask: Tensor, cuts: Cuts, length: int = 0) -> Tensor:
    """LUFFY's sum over micro-batches, whose divisor for accumulation is always 1.

    With a length each micro-batch is the sum over its tokens / length, which is how the policy loss is scaled in its
    scripts. Without, it is a token mean: so the entropy bonus there is as many times its coefficient as there are
    micro-batches.
    """
    parts = [list(cut) for cut in cuts]
    divisors = [length or mask[part].sum().clamp(min=1) for part in parts]
    sums = [(loss[part] * mask[part]).sum() for part in parts]
    return loss.new_zeros(()) + sum(value / divisor for value, divisor in zip(sums, divisors, strict=True))


def estimate_kl_as_verl(name: str, logps: Tensor, ref_logps: Tensor) -> Tensor:
    """verl's estimators by verl's names: k3 has d cut at 20 and its value at 10, both ways.

    Beyond its cuts the gradient is 0, so a policy that has gone far is no longer held; qed's own have none.
    """
    plain = name.removesuffix("+")
    own, difference = VERL.get(plain, plain), logps - ref_logps
    value = estimate_kl(own, difference.clamp(-20, 20)).clamp(-10, 10) if own == "k3" else estimate_kl(own, difference)
    if not name.endswith("+"):
        return value
    half_square = estimate_kl("k2", difference)
    return half_square - half_square.detach() + value.detach()


def apply_verl_singleton_rule(rewards: Tensor, advantages: Tensor, epsilon: float = 0.0) -> Tensor:
    """verl's rule for a group of one: its mean counts as 0 and its deviation as 1, so A = r."""
    return rewards / (1 + epsilon) if len(rewards) == 1 else advantages


def compute_gae(rewards: Tensor, values: Tensor, mask: Tensor, discount: float, decay: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438) with a critic's values; no algorithm of qed has one.

    Args:
        rewards, values, mask: [B, T]; what stands at masked places is skipped.
        discount: of later rewards.
        decay: lambda, between one step (0) and the whole return (1).

    Returns:
        the whitened advantages, 0 where masked, and the returns, [B, T].
    """
    advantages = rewards * 0
    after, ahead = rewards[:, 0] * 0, rewards[:, 0] * 0
    for place in reversed(range(rewards.shape[1])):
        valid = mask[:, place].bool()
        error = rewards[:, place] + discount * ahead - values[:, place]
        after = (error + discount * decay * after).where(valid, after)
        ahead = values[:, place].where(valid, ahead)
        advantages[:, place] = after
    chosen = mask.bool()
    return (advantages * 0).masked_scatter(chosen, whiten(advantages[chosen])), advantages + values
