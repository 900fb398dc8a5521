"""Surrogates: what a token adds to the loss that is minimised, given its log-probs and its advantage, [B, T] each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from qed.batch import Batch

Surrogate = Literal["clip", "plain"]
Terms = tuple["Tensor", dict[str, "Tensor"]]


def plain(batch: Batch, logps: Tensor) -> Terms:
    """REINFORCE (Williams 1992): - A log pi; its value carries no information, its gradient does."""
    return -batch.advantages * logps, {}


def clip(batch: Batch, logps: Tensor, low: float, high: float) -> Terms:
    """PPO (arXiv 1707.06347): - min(A rho, A clip(rho, 1 - low, 1 + high)), rho = exp(log pi - log pi_old)."""
    # Masked positions hold zeros in both columns; the mask keeps whatever they might hold out of the exponential.
    log_ratio = (logps - batch.old_logps) * batch.mask
    ratio = log_ratio.exp()
    free, clipped = batch.advantages * ratio, batch.advantages * ratio.clamp(1 - low, 1 + high)
    bound, counted = clipped < free, batch.mask.bool()
    return -free.minimum(clipped), {
        "clip/low": (bound & (batch.advantages < 0) & counted).sum(),
        "clip/high": (bound & (batch.advantages > 0) & counted).sum(),
        "kl/old": -(log_ratio.detach()).sum(),
    }
