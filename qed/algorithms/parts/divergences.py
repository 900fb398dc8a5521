"""Estimators of the per-token KL to a reference from log-probs, and the controller of the KL weight.

With d = log pi - log ref, on tokens that pi sampled: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1, abs = |d|. In a
loss, the gradient of k1 has expectation 0 and regularises nothing; that of k2 is correct on-policy; that of k3 is
biased. A name with a plus takes the value of its estimator and the gradient of k2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Divergence = Literal["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+"]
LARGEST_CHANGE = 0.2  # the controller clips a step's relative error to ± this


def estimate_kl(name: str, difference: Tensor) -> Tensor:
    """Estimate the KL from d = log pi - log ref, of any shape."""
    if name.endswith("+"):
        half_square = estimate_kl("k2", difference)
        return half_square - half_square.detach() + estimate_kl(name[:-1], difference).detach()
    if name == "k1":
        return difference
    if name == "k2":
        return difference**2 / 2
    return difference.abs() if name == "abs" else (-difference).exp() + difference - 1


def adapt_kl_weight(weight: float, measured: float, target: float, rows: float, horizon: int) -> float:
    """Compute the next KL weight (arXiv 1909.08593): weight (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon).

    Args:
        weight: weight of this step.
        measured: the KL of this step, per token.
        target: the desired KL.
        rows: n, the number of completions in this step.
        horizon: number of completions over which the weight adapts.
    """
    error = min(LARGEST_CHANGE, max(-LARGEST_CHANGE, measured / target - 1))
    return weight * (1 + error * rows / horizon)
