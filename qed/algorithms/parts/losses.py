"""Losses as functions of plain tensors: what a token or a pair adds before anything is averaged or weighted.

They hold no torch import, and give no gradient to anything but the policy's log-probs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def policy_gradient(advantages: Tensor, logps: Tensor) -> Tensor:
    """REINFORCE (Williams 1992): -A log pi, [B, T]; advantages are [B, T], or [B, 1] for whole rows."""
    return -advantages.detach() * logps


def clipped(advantages: Tensor, logps: Tensor, old_logps: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """PPO (arXiv 1707.06347): -min(A rho, A clip(rho, 1 - low, 1 + high)), rho = exp(log pi - log pi_old).

    Args:
        advantages: [B, T], or [B, 1] for whole rows.
        logps: [B, T], of the policy.
        old_logps: [B, T], of the policy that sampled.
        low: the ratio is clipped below at 1 - low.
        high: the ratio is clipped above at 1 + high.

    Returns:
        the loss of every token, [B, T], and where the clipped branch is the smaller one, [B, T] bool.
    """
    advantages = advantages.detach()
    ratio = (logps - old_logps.detach()).exp()
    free, bounded = advantages * ratio, advantages * ratio.clamp(1 - low, 1 + high)
    return -free.minimum(bounded), bounded < free


def dpo(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float) -> Tensor:
    """DPO (arXiv 2305.18290): -log sigmoid(beta ((chosen - ref_chosen) - (rejected - ref_rejected))).

    All are log-probs of whole responses, of one shape; the loss is not averaged.
    """
    difference = beta * ((chosen - ref_chosen.detach()) - (rejected - ref_rejected.detach()))
    return difference.new_zeros(()).logaddexp(-difference)
